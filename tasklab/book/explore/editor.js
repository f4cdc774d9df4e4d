(function () {
  "use strict";
  var root = document.getElementById("@ID@");
  if (!root || root.querySelector(".tl-live")) return; // a front end may run a script twice
  var data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  var zeros = data.vectors.map(function () { return 0; });
  var STOPS = data.grid.length ? (data.grid.length - 1) / 2 : 20; // of a slider on either side of 0
  var alphas = zeros.slice();
  var SIDE = 44, made = 0; // of a picture on the screen, in pixels; sliders
  var few = root.dataset.pictures, most = few ? { task: Number(few), control: 0 } : { task: Infinity, control: Infinity }; // shown

  function make(tag, attributes, children) {
    var svg = /^(svg|path|line|circle|rect|text|g)$/.test(tag);
    var node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    (children || []).forEach(function (child) { node.append(child); });
    return node;
  }

  function shorts(text) {
    var bytes = Uint8Array.from(atob(text), function (c) { return c.charCodeAt(0); });
    var view = new DataView(bytes.buffer), values = new Int16Array(bytes.length / 2);
    for (var i = 0; i < values.length; i++) values[i] = view.getInt16(2 * i, true);
    return values;
  }

  // The class with the largest score of every image; terms are added in Python's order.
  function predictions(task, at) {
    if (data.grid.length) { // a model that is not linear was measured at these stops
      var place = at.reduce(function (sum, a) { return sum * data.grid.length + Math.round((a + 1) * STOPS); }, 0);
      return Array.from(task.values.subarray(place * task.labels.length, (place + 1) * task.labels.length));
    }
    var T = at.length + 1, C = task.classes.length, found = [];
    for (var n = 0; n < task.labels.length; n++) {
      var best = -Infinity, index = 0;
      for (var c = 0; c < C; c++) {
        var start = (n * C + c) * T, total = task.values[start];
        for (var k = 1; k < T; k++) total += at[k - 1] * task.values[start + k];
        if (total > best) { best = total; index = c; }
      }
      found.push(index);
    }
    return found;
  }

  function share(task, found) {
    return 100 * found.filter(function (c, n) { return c === task.labels[n]; }).length / found.length;
  }

  function accuracies(at) {
    return data.tasks.map(function (task) { return share(task, predictions(task, at)); });
  }

  // The mean over the tasks that have a vector; the control is not among them.
  function mean(values) {
    var kept = values.filter(function (_, i) { return data.vectors.indexOf(data.tasks[i].name) >= 0; });
    return kept.reduce(function (a, b) { return a + b; }, 0) / kept.length;
  }

  // As Python writes numbers: a half goes to the even digit, where toFixed takes the larger number.
  function fixed(value, digits) {
    var kept = Math.round(value * 1e4) / 1e4, scale = Math.pow(10, digits), below = Math.floor(kept * scale);
    var half = Math.abs(kept * Math.pow(2, digits + 1)) % 2 === 1; // others are no halves in binary
    return (half ? (below + Math.abs(below % 2)) / scale : kept).toFixed(digits);
  }

  function signed(value) { return (value < 0 ? "\u2212" : "") + fixed(Math.abs(value), 2); }

  function slider(label, act) {
    var id = root.id + "-" + made++; // names may differ in signs alone
    var input = make("input", { type: "range", id: id, min: -1, max: 1, step: 1 / STOPS, value: 0 });
    var value = make("output", { for: id, class: "tl-number", "aria-live": "off" });
    input.addEventListener("input", function () { act(Number(input.value)); });
    return { name: make("label", { for: id, class: "tl-name" }, [label]), input: input, value: value,
      set: function (alpha, text) {
        input.value = alpha;
        input.setAttribute("aria-valuetext", text || signed(alpha));
        value.textContent = text || signed(alpha);
      } };
  }

  data.tasks.forEach(function (task) {
    task.values = shorts(task.scores);
    task.before = predictions(task, zeros);
  });
  var live = make("div", { class: "tl-live" }), status = make("p", { role: "status", "aria-live": "polite" });
  var labels = Object.keys(data.presets), opening = data.presets[labels[1] || labels[0]]; // the sum, at its chosen coefficient
  var first = document.querySelector(".tasklab-editor script[type]").parentNode === root; // of the page: its state is in the address
  var start = accuracies(zeros);

  var presets = make("div", { role: "group", "aria-label": "Presets" });
  Object.keys(data.presets).forEach(function (label) {
    var button = make("button", { type: "button" }, [label]);
    button.addEventListener("click", function () { alphas = data.presets[label].slice(); show(true); });
    presets.append(button);
  });

  var all = slider("all tasks", function (alpha) { alphas = zeros.map(function () { return alpha; }); show(true); });
  var plot = drawn();

  var rows = data.tasks.map(function (task, row) {
    var t = data.vectors.indexOf(task.name), control = t < 0;
    var at = zeros.map(function (_, i) { return i === t ? 1 : 0; });
    var own = control ? null : slider(task.name, function (alpha) { alphas[t] = alpha; show(true); });
    var fill = make("i"), before = make("b", { style: "left:calc(" + start[row] + "% - 1px)" });
    var bar = make("div", { class: "tl-bar", "aria-hidden": "true" }, [fill, before]);
    if (!control) bar.append(make("b", { class: "tl-alone", style: "left:calc(" + share(task, predictions(task, at)) + "% - 1px)" }));
    var number = make("span", { class: "tl-number" });
    var forget = make("button", { type: "button", class: "tl-forget", "aria-label": "forget " + task.name }, ["forget"]);
    forget.addEventListener("click", function () { alphas[t] = -Math.max.apply(null, opening.map(Math.abs)); show(true); });
    var pictures = [];
    for (var k = 0; k < Math.min(task.pictures, control ? most.control : most.task); k++) {
      var look = "background-image:var(--tl-sprite);background-size:" + SIDE * data.sprite.columns + "px;background-position:" + -SIDE * k + "px " + -SIDE * row + "px";
      var image = make("span", { class: "tl-image", role: "img", style: look });
      var mark = make("span", { class: "tl-mark" }), answer = make("span");
      var truth = make("span", { class: "tl-class tl-truth" }, [task.classes[task.labels[k]]]);
      var words = make("figcaption", { "aria-hidden": "true" }, [truth, make("span", { class: "tl-class" }, [mark, " ", answer])]);
      pictures.push({ node: make("figure", {}, [image, words]), image: image, mark: mark, answer: answer }); // its label says it all
    }
    var name = control ? make("span", { class: "tl-name" }, [task.name, make("br"), "(control)"]) : own.name;
    var strip = make("div", { class: "tl-pictures" }, pictures.map(function (p) { return p.node; }));
    var node = make("div", { class: "tl-task", role: "group", "aria-label": task.name },
      [name, control ? make("span") : own.input, control ? make("span") : make("span", { class: "tl-own" }, [own.value, forget]), bar, number, strip]);
    return { node: node, t: t, own: own, fill: fill, number: number, pictures: pictures };
  });

  function drawn() {
    var grid = [], i;
    for (i = -STOPS; i <= STOPS; i++) grid.push(i / STOPS);
    var line = grid.map(function (a) { return mean(accuracies(zeros.map(function () { return a; }))); });
    var every = line.concat.apply(line, data.curves.map(function (c) { return c.means; }));
    var low = 10 * Math.floor(Math.min.apply(null, every) / 10), high = 10 * Math.ceil(Math.max.apply(null, every) / 10 + 0.3);
    function x(a) { return 40 + 130 * (a + 1); }
    function y(v) { return 120 - 110 * (v - low) / (high - low); }
    function path(xs, ys) { return "M" + xs.map(function (a, j) { return x(a).toFixed(1) + " " + y(ys[j]).toFixed(1); }).join("L"); }
    var told = "Mean accuracy along a coefficient that all tasks share";
    var svg = make("svg", { viewBox: "0 0 310 150", role: "img", "aria-label": told });
    [-1, -0.5, 0, 0.5, 1].forEach(function (a) {
      svg.append(make("line", { x1: x(a), x2: x(a), y1: 120, y2: a ? 123 : 10, stroke: "var(--tl-line)" }),
        make("text", { x: x(a), y: 135, "text-anchor": "middle" }, [String(a).replace("-", "\u2212")]));
    });
    [low, (low + high) / 2, high].forEach(function (v) {
      svg.append(make("line", { x1: 40, x2: 300, y1: y(v), y2: y(v), stroke: "var(--tl-line)" }),
        make("text", { x: 35, y: y(v) + 4, "text-anchor": "end" }, [v + " %"]));
    });
    svg.append(make("text", { x: 170, y: 148, "text-anchor": "middle" }, ["coefficient of all tasks"]),
      make("text", { x: 0, y: 0, "text-anchor": "middle", transform: "translate(2 65) rotate(-90)" }, ["mean accuracy"]));
    // Names of lines: the live one above its highest point, others below their ends.
    function named(text, a, v, shift, anchor, colour) {
      svg.append(make("text", { x: x(a), y: y(v) + shift, "text-anchor": anchor, style: "fill:" + colour }, [text]));
    }
    var top = Math.max.apply(null, line);
    named(data.method, Math.min(grid[line.indexOf(top)], 0.6), top, -8, "middle", "var(--tl-live)");
    data.curves.forEach(function (curve) {
      var end = curve.means.length - 1;
      named(curve.label, curve.alphas[end], curve.means[end], 16, "end", "var(--tl-recorded)");
      svg.append(make("path", { d: path(curve.alphas, curve.means), fill: "none", stroke: "var(--tl-recorded)", "stroke-dasharray": "3 2" }));
      curve.alphas.forEach(function (a, j) {
        svg.append(make("rect", { x: x(a) - 2.5, y: y(curve.means[j]) - 2.5, width: 5, height: 5, fill: "var(--tl-recorded)" }));
      });
    });
    svg.append(make("path", { d: path(grid, line), fill: "none", stroke: "var(--tl-live)", "stroke-width": 2 }));
    var point = make("circle", { r: 5.5, fill: "var(--tl-live)", stroke: "var(--tl-text)" });
    svg.append(point);
    return { svg: svg, move: function (a, v) { point.setAttribute("cx", x(a)); point.setAttribute("cy", y(Math.max(low, Math.min(high, v)))); } };
  }

  function keep() { // beside the state of a network
    var others = location.hash.slice(1).split("&").filter(function (part) { return /^network=/.test(part); });
    history.replaceState(null, "", "#" + ["edit=" + alphas.join(",")].concat(others).join("&"));
  }

  // Shows the model at `alphas`; what a reader chose is kept in the page's address.
  function show(chosen) {
    if (chosen) playing = 0;
    if (chosen && first && document.querySelector(".bd-content")) keep();
    var better = 0, worse = 0, values = data.tasks.map(function (task, row) {
      var found = predictions(task, alphas), view = rows[row], value = share(task, found);
      found.forEach(function (c, n) {
        var is = c === task.labels[n], was = task.before[n] === task.labels[n];
        if (view.t >= 0) { better += is && !was; worse += was && !is; }
        if (n >= view.pictures.length) return;
        var p = view.pictures[n], word = is ? "right" : "wrong", flip = is !== was;
        p.node.className = "tl-picture tl-" + word + (flip ? " tl-flip" : "");
        p.mark.textContent = (flip ? "now " : "") + (is ? "\u2713" : "\u2717");
        p.answer.textContent = is ? "" : task.classes[c];
        p.node.title = task.classes[task.labels[n]] + (is ? ": recognised" : ": taken for " + task.classes[c]) +
          (flip ? ", " + (was ? "right" : "wrong") + " before the edit" : "");
        p.image.setAttribute("aria-label", p.node.title);
      });
      view.fill.style.width = value + "%";
      view.number.textContent = fixed(value, 1) + " %";
      if (view.own) view.own.set(alphas[view.t]);
      return value;
    });
    var shared = alphas.every(function (a) { return a === alphas[0]; }), total = mean(values);
    var middle = alphas.reduce(function (a, b) { return a + b; }, 0) / alphas.length;
    all.set(middle, shared ? "" : "each own");
    plot.move(middle, total);
    status.textContent = "Mean accuracy on " + data.images + ": " + fixed(total, 1) + " % (" + data.start + " " + fixed(mean(start), 1) + " %): " +
      better + " answers turned right, " + worse + " turned wrong." + cost(values);
    Array.prototype.forEach.call(presets.children, function (button) {
      var own = data.presets[button.textContent];
      button.setAttribute("aria-pressed", String(own.every(function (a, i) { return a === alphas[i]; })));
    });
  }

  function cost(values) {
    return data.tasks.map(function (task, row) {
      if (data.vectors.indexOf(task.name) >= 0) return "";
      return " Control task: " + fixed(start[row], 1) + " to " + fixed(values[row], 1) + " %.";
    }).join("");
  }

  var key = "Line: the " + data.method + " model" + (data.grid.length ? ", measured at " + Math.pow(data.grid.length, zeros.length) + " combinations. " : ". ") +
    data.curves.map(function (c) { return "Squares: the " + c.label + " model, measured there. "; }).join("") +
    "Disc: the sliders now, at their mean.";
  var head = make("div", {}, [presets, make("div", { class: "tl-all" }, [all.name, all.input, all.value]), status]);
  live.append(make("div", { class: "tl-top" }, [head, make("div", {}, [plot.svg, make("p", { class: "tl-key" }, [key])])]));
  rows.forEach(function (row) { live.append(row.node); });
  live.append(make("p", { class: "tl-key" }, ["Bars: accuracy in %, with the " + (data.start === "probes" ? "probes" : data.start + " model") + " (line) and each vector alone at 1 (dots); " +
    data.counted + ". Under a picture is its class. \u2713 and a full frame: the model recognises it. \u2717 and a dotted frame: the model answers what stands below; " +
    "\u201cnow\u201d and a second line where the edit changed it."]));
  root.querySelector(".tl-table").hidden = true;
  root.style.setProperty("--tl-sprite", "url(data:image/jpeg;base64," + data.sprite.jpeg + ")");
  root.append(live);
  root.tasklab = { accuracies: accuracies, fixed: fixed }; // for tests

  // Opens at the sum, after a short sweep from the pre-trained model; an address may name another state.
  var playing = 1, kept = /(?:^#|&)edit=([-\d.,]+)(?:&|$)/.exec(location.hash);
  kept = kept && first ? kept[1].split(",").map(Number) : [];
  if (kept.length === zeros.length && kept.every(function (a) { return a >= -1 && a <= 1; })) { alphas = kept; playing = 0; }
  if (playing && matchMedia("(prefers-reduced-motion: reduce)").matches) { alphas = opening.slice(); playing = 0; }
  show();
  if (playing) new IntersectionObserver(function (seen, observer) {
    if (!seen[0].isIntersecting) return;
    observer.disconnect();
    (function step() {
      if (!playing) return;
      alphas = opening.map(function (a) { return playing < 20 ? Math.round(STOPS * a * playing / 20) / STOPS : a; });
      playing = playing < 20 ? playing + 1 : 0;
      show();
      if (playing) setTimeout(step, 45);
    })();
  }).observe(root);
})();
