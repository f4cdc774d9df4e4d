"""The serious faults that axe-core finds on a page in a browser."""

import functools
import importlib.resources

import axe_playwright_python

SAME = 5  # texts of one look whose contrast is measured: of all, some pages take half a minute
# A look is the font and colour of a text and every background below it.
FAULTS = """async most => {
    const how = {resultTypes: ['violations'], preload: false}, rule = 'color-contrast';
    const below = new Map(), looks = {}, texts = [];
    for (const node of document.querySelectorAll('*')) {
        const style = getComputedStyle(node), above = below.get(node.parentElement);
        const own = [style.backgroundColor, style.backgroundImage, style.opacity].join();
        below.set(node, own === 'rgba(0, 0, 0, 0),none,1' ? above : above + own);
        if (![...node.childNodes].some(one => one.nodeType === 3 && one.data.trim())) continue;
        if (!node.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const look = [style.color, style.fontSize, style.fontWeight, below.get(node)].join();
        looks[look] = (looks[look] || 0) + 1;
        if (looks[look] <= most) texts.push(node);
    }
    const runs = [
        await axe.run(document, {...how, rules: {[rule]: {enabled: false}}}),
        await axe.run({include: texts}, {...how, runOnly: [rule]}),
    ];
    return runs.flatMap(run => run.violations)
        .filter(one => ['serious', 'critical'].includes(one.impact))
        .flatMap(one => one.nodes.map(node => one.id + ': ' + node.html.slice(0, 120)));
}"""


@functools.cache
def _axe():
    return (
        importlib.resources.files(axe_playwright_python).joinpath("axe.min.js").read_text("utf-8")
    )


def faults(page):
    """Return the faults of a page, with its formulas set and its network loaded."""
    if page.locator("article .math").count():
        page.locator("mjx-container").first.wait_for(state="attached")
        page.evaluate("() => MathJax.startup.promise.then(() => null)")
    load = page.get_by_role("button", name="Load the network")
    if load.count():
        load.click()
        page.locator(".tl-network-page .tl-live[data-done]").wait_for()
    page.evaluate(_axe())
    return page.evaluate(FAULTS, SAME)
