"""Every interval of the site: one effect has one interval under one label."""

import html
import re

import pytest

LINE = re.compile(
    r'<a class="tl-chip[^"]*" href="[^"]*#verdict-([\w-]+)"[^>]*>[^<]*</a>'
    r'(?: <a class="tl-chip tl-world"[^>]*>[^<]*</a>)?([^<]*)'
)
ROW = re.compile(r'<tr id="verdict-([\w-]+)".*?</tr>', re.S)
ELSEWHERE = re.compile(r'<td data-head="([^"]*)" data-world="\d".*?</td>', re.S)
EFFECT = re.compile(
    r"([+−][\d.]+)(?: [a-z]+)? \((−?[\d.]+) to (−?[\d.]+) over "
    r"(seeds and tasks|seeds|rounds|pre-trainings)\)"
)


def collected(pages):
    """Return by statement and label what pages print: effect and ends, with the pages."""
    found = {}
    for name, text in pages.items():
        said = [(one[1], one[2]) for one in LINE.finditer(text)]
        for row in ROW.finditer(text):
            said.append((row[1], ELSEWHERE.sub("", row[0])))
            said += [(f"{row[1]} {cell[1]}", cell[0]) for cell in ELSEWHERE.finditer(row[0])]
        for statement, part in said:
            for effect, low, high, label in EFFECT.findall(html.unescape(part)):
                known = found.setdefault((statement, label), {})
                known.setdefault((effect, low, high), set()).add(name)
    return found


def differing(found):
    return {key: known for key, known in found.items() if len(known) > 1}


def test_two_intervals_of_one_effect_are_found():
    line = '<a class="tl-chip tl-holds" href="verdicts.html#verdict-a">holds here</a> A: {}'
    first, second = "+3.9 points (2.5 to 5.2 over seeds)", "+3.9 points (2.3 to 5.4 over seeds)"
    same = {"one": line.format(first), "two": line.format(first)}
    assert collected(same) and not differing(collected(same))
    assert differing(collected({**same, "two": line.format(second)}))
    general = line.format(second.replace("seeds", "seeds and tasks"))
    assert not differing(collected({**same, "two": general}))
    there = f'<td data-head="texts" data-world="2" class="tv-outcome">{second}</td>'
    row = f'<tr id="verdict-a"><td>{first}</td>{there}</tr>'
    assert len(collected({"one": row})) == 2 and not differing(collected({"one": row}))


@pytest.mark.slow
def test_an_effect_has_one_interval_under_one_label(site):
    pages = {
        path.relative_to(site).as_posix(): path.read_text("utf-8")
        for path in (*site.glob("*.html"), *(site / "notebooks").glob("*.html"))
    }
    found = collected(pages)
    assert len(found) > 50 and {
        name for known in found.values() for p in known.values() for name in p
    }
    assert differing(found) == {}


def apart(chapters, listed):
    """Return how many effects chapters print, and those that the list of verdicts does not have.

    In chapters they stand without intervals, which the list has.
    """
    rows = {one[1]: html.unescape(ELSEWHERE.sub("", one[0])) for one in ROW.finditer(listed)}
    said = [(one[1], re.search(r": ([+−][\d.]+)", one[2])) for one in LINE.finditer(chapters)]
    said = [(name, effect[1]) for name, effect in said if effect]
    return len(said), [one for one in said if f"{one[1]} " not in rows[one[0]]]


def test_an_effect_that_the_list_does_not_have_is_found():
    line = '<a class="tl-chip tl-open" href="verdicts.html#verdict-a" title="x">open</a>{} A: {}'
    world = ' <a class="tl-chip tl-world" href="replication.html">by world</a>'
    listed = '<tr id="verdict-a"><td>+3.9 points (2.5 to 5.2 over seeds)</td></tr>'
    assert apart(line.format(world, "+3.9 points · texts"), listed) == (1, [])
    assert apart(line.format("", "+3.8 points"), listed) == (1, [("a", "+3.8")])
    there = '<td data-head="texts" data-world="2">+3.8 points (2.5 to 5.2 over seeds)</td></tr>'
    assert apart(line.format("", "+3.8 points"), listed.replace("</tr>", there))[1]


@pytest.mark.slow
def test_chapters_print_the_effects_of_the_list(site):
    chapters = "".join(one.read_text("utf-8") for one in (site / "notebooks").glob("*.html"))
    count, wrong = apart(chapters, (site / "verdicts.html").read_text("utf-8"))
    assert count > 50 and wrong == []
