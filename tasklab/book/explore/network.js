(function () {
  "use strict";
  var root = document.getElementById("@ID@");
  if (!root || root.querySelector(".tl-live")) return; // a front end may run a script twice
  var info = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  var KERNEL = "AGFzbQEAAAABCgFgBn9/f39/fwADAgEABQMBAAEHFAIGbWVtb3J5AgAHcHJvZHVjdAAACo0DAYoDAgR/BXsgBEECdCEEAkADQCADRQ0BIAEhByAFIQYDQP0MAAAAAAAAAAAAAAAAAAAAACELIAshDCALIQ0gCyEOIAAhCCAAIARqIQkDQCAI/QAEACEKIAsgCiAH/QAEAP3mAf3kASELIAwgCiAHIARq/QAEAP3mAf3kASEMIA0gCiAHIARBAXRq/QAEAP3mAf3kASENIA4gCiAHIARBA2xq/QAEAP3mAf3kASEOIAdBEGohByAIQRBqIgggCUkNAAsgByAEQQNsaiEHIAsgDP0NAAECAxAREhMEBQYHFBUWFyALIAz9DQgJCgsYGRobDA0ODxwdHh/95AEhCyANIA79DQABAgMQERITBAUGBxQVFhcgDSAO/Q0ICQoLGBkaGwwNDg8cHR4f/eQBIQ0gAiAC/QAEACALIA39DQABAgMEBQYHEBESExQVFhcgCyAN/Q0ICQoLDA0ODxgZGhscHR4f/eQB/eQB/QsEACACQRBqIQIgBkEEayIGDQALIAkhACADQQFrIQMMAAsLCw=="; // network.wat, assembled
  var PART = 8; // images of one pass

  function bytes(text) {
    var plain = atob(text), found = new Uint8Array(plain.length);
    for (var i = 0; i < plain.length; i++) found[i] = plain.charCodeAt(i);
    return found;
  }

  // --- The network: one WebAssembly memory holds theta_0, the edit, their sum and all activations ---

  function network(kernel, blob) {
    var memory = kernel.memory, view = new DataView(blob.buffer, blob.byteOffset), at = 0, size = 0;
    var T = info.tasks.length, L = info.tokens, D = info.width, place = {};
    info.tensors.forEach(function (t) { place[t.name] = size; size += t.rows * t.columns; });
    var room = PART * L * (2 * (2 * D + 3 * D + D + 4 * D) + 2 * info.patch_inputs) + 1024;
    memory.grow(Math.ceil((3 * size + room) / 16384));
    var all = new Float32Array(memory.buffer), THETA = 0, EDIT = size, SUM = 2 * size, FREE = 3 * size;
    FREE += -FREE & 3; // aligned

    function floats(count, to) { for (var i = 0; i < count; i++, at += 4) to[i] = view.getFloat32(at, true); return to; }
    function part(count) { at += count; return blob.subarray(at - count, at); }

    info.tensors.forEach(function (t) {
      var count = t.rows * t.columns, start = place[t.name];
      if (t.rows === 1) { floats(count, all.subarray(start, start + count)); return; }
      var scales = floats(t.rows, new Float32Array(t.rows)), q = new Int8Array(part(count));
      for (var i = 0; i < count; i++) all[start + i] = scales[Math.floor(i / t.columns)] * q[i];
    });
    var vectors = info.tasks.map(function () {
      return info.tensors.map(function (t) {
        var scales = floats(t.rows, new Float32Array(t.rows));
        return { scales: scales, q: t.rows === 1 ? new Int8Array(part(t.columns)) : part(t.rows * t.columns / 2) };
      });
    });
    info.tasks.forEach(function (task) {
      task.head = floats(task.classes.length * D, new Float32Array(task.classes.length * D));
      task.lengths = task.classes.map(function (_, c) { return Math.hypot.apply(null, task.head.subarray(c * D, (c + 1) * D)); });
    });

    // theta_0 + sum_t alpha_t tau_t: whole bytes in vectors of one row, two numbers a byte in the others.
    function merge(alphas) {
      all.fill(0, EDIT, EDIT + size);
      for (var v = 0; v < T; v++) {
        if (alphas[v]) info.tensors.forEach(function (t, n) {
          var own = vectors[v][n], to = EDIT + place[t.name];
          for (var r = 0; r < t.rows; r++) {
            var scale = alphas[v] * own.scales[r];
            if (t.rows === 1) for (var i = 0; i < t.columns; i++) all[to++] += scale * own.q[i];
            else for (var j = r * t.columns / 2, end = j + t.columns / 2; j < end; j++) {
              all[to++] += scale * ((own.q[j] >> 4) - 8);
              all[to++] += scale * ((own.q[j] & 15) - 8);
            }
          }
        });
      }
      for (var k = 0; k < size; k++) all[SUM + k] = all[THETA + k] + all[EDIT + k];
    }

    // Features of normalised images (N, 3, side, side): f(theta_0 + edit), or f(theta_0) + J edit.
    function features(x, linear) {
      var N = x.length / (3 * info.side * info.side), free = FREE, W = linear ? THETA : SUM;
      function space(count) { free += count; return free - count; }
      function pair(count) { return { v: space(count), d: linear ? space(count) : 0 }; }
      function product(x, w, y, m, k, n) { kernel.product(4 * x, 4 * w, 4 * y, m, k, n); }
      function affine(x, y, m, k, n, weight, bias) {
        var w = place[weight], b = place[bias];
        for (var r = 0; r < m; r++) for (var j = 0; j < n; j++) {
          all[y.v + r * n + j] = bias ? all[W + b + j] : 0;
          if (linear) all[y.d + r * n + j] = bias ? all[EDIT + b + j] : 0;
        }
        product(x.v, W + w, y.v, m, k, n);
        if (linear) { product(x.v, EDIT + w, y.d, m, k, n); if (x.d) product(x.d, W + w, y.d, m, k, n); }
      }
      function norm(x, y, m, weight, bias) {
        var w = place[weight], b = place[bias];
        for (var r = 0; r < m; r++) {
          var s = x.v + r * D, o = y.v + r * D, mean = 0, square = 0, dmean = 0, dn = 0, i, n;
          for (i = 0; i < D; i++) mean += all[s + i] / D;
          for (i = 0; i < D; i++) square += (all[s + i] - mean) * (all[s + i] - mean) / D;
          var scale = 1 / Math.sqrt(square + info.eps), ds = x.d + r * D;
          if (linear) for (i = 0; i < D; i++) { dmean += all[ds + i] / D; dn += (all[s + i] - mean) * scale * all[ds + i] / D; }
          for (i = 0; i < D; i++) {
            n = (all[s + i] - mean) * scale;
            if (linear) all[y.d + r * D + i] = all[W + w + i] * scale * (all[ds + i] - dmean - n * dn) + n * all[EDIT + w + i] + all[EDIT + b + i];
            all[o + i] = n * all[W + w + i] + all[W + b + i];
          }
        }
      }
      function attention(q, y) { // q (N L, 3 D): queries, keys, values of all heads
        var d = D / info.heads, p = new Float64Array(L), dp = new Float64Array(L), i, j, c;
        for (var n = 0; n < N; n++) for (var h = 0; h < info.heads; h++) for (i = 0; i < L; i++) {
          var qi = (n * L + i) * 3 * D + h * d, top = -Infinity, total = 0, drift = 0;
          for (j = 0; j < L; j++) {
            var kj = (n * L + j) * 3 * D + D + h * d, s = 0, t = 0;
            for (c = 0; c < d; c++) {
              s += all[q.v + qi + c] * all[q.v + kj + c];
              if (linear) t += all[q.d + qi + c] * all[q.v + kj + c] + all[q.v + qi + c] * all[q.d + kj + c];
            }
            p[j] = s / Math.sqrt(d); dp[j] = t / Math.sqrt(d);
            top = Math.max(top, p[j]);
          }
          for (j = 0; j < L; j++) total += p[j] = Math.exp(p[j] - top);
          for (j = 0; j < L; j++) { p[j] /= total; drift += p[j] * dp[j]; }
          for (c = 0; c < d; c++) {
            var sum = 0, dsum = 0;
            for (j = 0; j < L; j++) {
              var vj = (n * L + j) * 3 * D + 2 * D + h * d + c;
              sum += p[j] * all[q.v + vj];
              if (linear) dsum += p[j] * all[q.d + vj] + p[j] * (dp[j] - drift) * all[q.v + vj];
            }
            all[y.v + (n * L + i) * D + h * d + c] = sum;
            if (linear) all[y.d + (n * L + i) * D + h * d + c] = dsum;
          }
        }
      }
      function gelu(y, count) {
        for (var i = 0; i < count; i++) {
          var x = all[y.v + i], z = Math.abs(x) / Math.SQRT2, t = 1 / (1 + 0.3275911 * z), e = Math.exp(-z * z);
          // Abramowitz and Stegun, 7.1.26
          var tail = 0.5 * e * t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
          var below = x < 0 ? tail : 1 - tail; // the normal distribution at x
          if (linear) all[y.d + i] *= below + x * e / Math.sqrt(2 * Math.PI);
          all[y.v + i] = x * below;
        }
      }
      function add(x, y, count) {
        for (var i = 0; i < count; i++) { all[x.v + i] += all[y.v + i]; if (linear) all[x.d + i] += all[y.d + i]; }
      }

      var g = info.side / info.patch, P = info.patch, K = info.patch_inputs, M = N * L, i, j, r, c;
      var tiles = { v: space(N * g * g * K), d: 0 }, grown = pair(N * g * g * D), x0 = pair(M * D);
      for (var n = 0, o = tiles.v; n < N; n++) for (r = 0; r < g; r++) for (j = 0; j < g; j++)
        for (c = 0; c < 3; c++) for (i = 0; i < P; i++) for (var k = 0; k < P; k++)
          all[o++] = x[((n * 3 + c) * info.side + r * P + i) * info.side + j * P + k];
      affine(tiles, grown, N * g * g, K, D, "patch");
      for (n = 0; n < N; n++) for (j = 0; j < L; j++) for (i = 0; i < D; i++) {
        var here = (n * L + j) * D + i, from = (n * g * g + j - 1) * D + i, pos = place.positions + j * D + i, cls = place["class"] + i;
        all[x0.v + here] = all[W + pos] + (j ? all[grown.v + from] : all[W + cls]);
        if (linear) all[x0.d + here] = all[EDIT + pos] + (j ? all[grown.d + from] : all[EDIT + cls]);
      }
      var stream = pair(M * D), inner = pair(M * D), qkv = pair(M * 3 * D), up = pair(M * 4 * D);
      norm(x0, stream, M, "pre_w", "pre_b");
      for (var b = 0; b < info.blocks; b++) {
        norm(stream, inner, M, b + ".norm1_w", b + ".norm1_b");
        affine(inner, qkv, M, D, 3 * D, b + ".qkv_w", b + ".qkv_b");
        attention(qkv, inner);
        affine(inner, x0, M, D, D, b + ".out_w", b + ".out_b");
        add(stream, x0, M * D);
        norm(stream, inner, M, b + ".norm2_w", b + ".norm2_b");
        affine(inner, up, M, D, 4 * D, b + ".up_w", b + ".up_b");
        gelu(up, M * 4 * D);
        affine(up, x0, M, 4 * D, D, b + ".down_w", b + ".down_b");
        add(stream, x0, M * D);
      }
      for (n = 0; n < N; n++) for (i = 0; i < D; i++) { // the class token alone
        all[inner.v + n * D + i] = all[stream.v + n * L * D + i];
        if (linear) all[inner.d + n * D + i] = all[stream.d + n * L * D + i];
      }
      norm(inner, x0, N, "post_w", "post_b");
      affine(x0, inner, N, D, D, "projection");
      var found = new Float64Array(N * D);
      for (i = 0; i < N * D; i++) found[i] = all[inner.v + i] + (linear ? all[inner.d + i] : 0);
      return found;
    }

    function logits(f, n, task) { // of image n of some features
      var length = 0, i, found = [];
      for (i = 0; i < D; i++) length += f[n * D + i] * f[n * D + i];
      for (var c = 0; c < task.classes.length; c++) {
        var sum = 0;
        for (i = 0; i < D; i++) sum += f[n * D + i] * task.head[c * D + i];
        found.push(sum / Math.max(Math.sqrt(length), 1e-12));
      }
      return found;
    }

    return { merge: merge, features: features, logits: logits };
  }

  // --- The page -------------------------------------------------------------------------------------

  function make(tag, attributes, children) {
    var node = document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    (children || []).forEach(function (child) { node.append(child); });
    return node;
  }
  function button(label, act) {
    var node = make("button", { type: "button" }, [label]);
    node.addEventListener("click", act);
    return node;
  }
  function signed(value) { return (value < 0 ? "\u2212" : "") + Math.abs(value).toFixed(2); }
  function softmax(z) {
    var top = Math.max.apply(null, z), e = z.map(function (v) { return Math.exp(v - top); });
    var sum = e.reduce(function (a, b) { return a + b; }, 0);
    return e.map(function (v) { return v / sum; });
  }
  function best(z) { return z.indexOf(Math.max.apply(null, z)); }

  var live = make("div", { class: "tl-live" });
  root.append(live);

  function start(net, sprite) {
    var S = info.side, alphas = info.tasks.map(function () { return info.alpha; });
    var chosen = 0, picture = 0, own = null, drawing = false, job = 0;
    var why = ""; // there is nothing to answer: what the reader is told
    var first = document.querySelector(".tl-network-page") === root && document.querySelector(".bd-content"); // its state is in the address
    var EMPTY = "The canvas is empty: draw, choose a picture or drop one on it.";
    var sheet = make("canvas", { width: sprite.width, height: sprite.height }).getContext("2d", { willReadFrequently: true });
    sheet.drawImage(sprite, 0, 0);

    function normalised(pixels) { // RGBA of side x side pixels
      var x = new Float32Array(3 * S * S);
      for (var c = 0; c < 3; c++) for (var i = 0; i < S * S; i++)
        x[c * S * S + i] = (pixels[4 * i + c] / 255 - info.mean[c]) / info.std[c];
      return x;
    }
    info.tasks.forEach(function (task, row) {
      task.images = task.labels.map(function (_, n) { return normalised(sheet.getImageData(n * S, row * S, S, S).data); });
    });

    var status = make("p", { role: "status", "aria-live": "polite" });
    var pad = make("canvas", { width: 256, height: 256, class: "tl-pad", role: "application", "aria-roledescription": "drawing canvas", "aria-describedby": root.id + "-pad", tabindex: 0 }), pen = pad.getContext("2d");
    var small = make("canvas", { width: S, height: S }), tiny = small.getContext("2d", { willReadFrequently: true });
    var file = make("input", { type: "file", accept: "image/*", hidden: "" });
    var select = make("select", { "aria-label": "Question" }, info.tasks.map(function (task, i) {
      return make("option", { value: i }, [task.name + " (" + task.classes.length + " classes)"]);
    }));
    var answers = make("div", { class: "tl-answers" }), strip = make("div", { class: "tl-strip", role: "group", "aria-label": "Pictures" });

    function current() { return own || info.tasks[chosen].images[picture]; }
    function white() { pen.fillStyle = "#fff"; pen.fillRect(0, 0, 256, 256); }
    function seen() { // what is on the pad, as the network takes it
      tiny.imageSmoothingQuality = "high";
      tiny.drawImage(pad, 0, 0, S, S);
      var pixels = tiny.getImageData(0, 0, S, S).data;
      if (pixels.every(function (value, i) { return value === pixels[i % 4]; })) { nothing(EMPTY); return; }
      own = normalised(pixels); why = "";
      answer(); marked();
    }
    function nothing(reason) {
      own = null; why = reason;
      white(); pad.setAttribute("aria-label", "empty");
      answer(); marked();
    }
    function take(source) {
      var side = Math.min(source.width, source.height);
      white(); // behind a picture with transparency
      pen.imageSmoothingQuality = "high";
      pen.drawImage(source, (source.width - side) / 2, (source.height - side) / 2, side, side, 0, 0, 256, 256);
      pad.setAttribute("aria-label", "your picture");
      seen();
    }
    function read(blob) {
      if (!blob || !/^image\//.test(blob.type)) { nothing("This file is not a picture."); return; }
      var image = new Image(), failed = function () { nothing("This picture cannot be read."); };
      image.onload = function () { try { take(image); } catch (error) { failed(); } URL.revokeObjectURL(image.src); };
      image.onerror = failed;
      image.src = URL.createObjectURL(blob);
    }
    function pick(n) {
      picture = n; own = null; why = "";
      pen.imageSmoothingEnabled = false;
      pen.drawImage(sheet.canvas, n * S, chosen * S, S, S, 0, 0, 256, 256);
      pen.imageSmoothingEnabled = true;
      pad.setAttribute("aria-label", "picture " + (n + 1) + " of " + info.tasks[chosen].name);
      answer(); marked();
    }
    file.addEventListener("change", function () { if (file.files.length) read(file.files[0]); file.value = ""; });
    pad.addEventListener("dragover", function (event) { event.preventDefault(); });
    pad.addEventListener("drop", function (event) { event.preventDefault(); read(event.dataTransfer.files[0]); });
    function point(event) { var box = pad.getBoundingClientRect(); return [(event.clientX - box.left) * 256 / box.width, (event.clientY - box.top) * 256 / box.height]; }
    function brush(from, to) {
      pen.lineWidth = 22; pen.lineCap = pen.lineJoin = "round"; pen.strokeStyle = "#000";
      pen.beginPath(); pen.moveTo(from[0], from[1]); pen.lineTo(to[0], to[1]); pen.stroke();
    }
    var place = [128, 128]; // of the brush
    function begin() { // a drawing starts on white
      if (!own && !why) white();
      pad.setAttribute("aria-label", "your drawing");
    }
    pad.addEventListener("pointerdown", function (event) {
      begin();
      drawing = true; pad.setPointerCapture(event.pointerId);
      place = point(event);
      brush(place, place);
    });
    pad.addEventListener("pointermove", function (event) { if (drawing) brush(place, place = point(event)); });
    ["pointerup", "pointercancel"].forEach(function (end) {
      pad.addEventListener(end, function () { if (drawing) { drawing = false; seen(); } });
    });
    pad.addEventListener("keydown", function (event) { // arrows draw, with Shift they move the brush
      var step = { ArrowLeft: [-8, 0], ArrowRight: [8, 0], ArrowUp: [0, -8], ArrowDown: [0, 8] }[event.key], from = place;
      if (!step) return;
      event.preventDefault();
      place = place.map(function (x, i) { return Math.max(12, Math.min(244, x + step[i])); });
      if (event.shiftKey) return;
      begin(); brush(from, place); seen();
    });

    // Names a class of the reader's picture only where the features point to one: see `packing.abstention`.
    function likely(f, task) {
      return net.logits(f, 0, task).some(function (z, c) { return z / task.lengths[c] >= info.abstention.cosine; });
    }
    function answer() {
      if (why) { answers.replaceChildren(); status.textContent = why; return; }
      var x = current(), f = net.features(x, false), task = info.tasks[chosen], truth = own ? -1 : task.labels[picture];
      var merged = softmax(net.logits(f, 0, task)), linear = softmax(net.logits(net.features(x, true), 0, task));
      if (own && !likely(f, task)) {
        answers.replaceChildren();
        status.textContent = "Nothing it knows is likely: this looks like none of the " + task.classes.length + " classes of " + task.name + ".";
        return;
      }
      var order = merged.map(function (_, c) { return c; }).sort(function (a, b) { return Math.max(merged[b], linear[b]) - Math.max(merged[a], linear[a]); });
      var shown = order.slice(0, 5);
      if (truth >= 0 && shown.indexOf(truth) < 0) shown[4] = truth;
      answers.replaceChildren.apply(answers, shown.map(function (c) {
        var name = make("span", { class: "tl-name" }, [task.classes[c] + (c === truth ? " (true)" : "")]);
        var bars = [[merged, "tl-merged"], [linear, "tl-linear"]].map(function (side) {
          return make("div", { class: "tl-bar " + side[1] }, [make("i", { style: "width:" + 100 * side[0][c] + "%" })]);
        });
        var numbers = make("span", { class: "tl-number" }, [Math.round(100 * merged[c]) + " % ", make("span", { class: "tl-other" }, [Math.round(100 * linear[c]) + " %"])]);
        return make("div", { class: "tl-answer" }, [name, make("div", {}, bars), numbers]);
      }));
      var said = task.classes[best(merged)], other = task.classes[best(linear)];
      status.textContent = (truth < 0 ? "" : best(merged) === truth ? "Right: " : "Wrong: ") + said +
        (other === said ? "" : " (linearized: " + other + ")");
    }

    function pictures() {
      strip.replaceChildren.apply(strip, info.tasks[chosen].labels.map(function (label, n) {
        var node = button("", function () { pick(n); });
        node.className = "tl-pick";
        node.style.backgroundPosition = (-44 * n) + "px " + (-44 * chosen) + "px";
        node.style.backgroundSize = 44 * info.columns + "px";
        node.setAttribute("aria-label", "picture " + (n + 1) + ", " + info.tasks[chosen].classes[label]);
        return node;
      }));
      marked();
    }
    function marked() {
      Array.prototype.forEach.call(strip.children, function (node, n) {
        node.setAttribute("aria-pressed", String(!own && !why && n === picture));
        var right = (info.tasks[chosen].right || [])[n];
        node.classList.toggle("tl-right", right === true);
        node.classList.toggle("tl-wrong", right === false);
      });
    }

    var rows = info.tasks.map(function (task, t) {
      var id = root.id + "-" + t, input = make("input", { type: "range", id: id, min: -1, max: 1, step: 0.05 });
      var value = make("output", { "for": id, class: "tl-number", "aria-live": "off" }), count = make("span", { class: "tl-number" });
      input.addEventListener("input", function () { alphas[t] = Number(input.value); changed(); keep(); });
      return { node: make("div", { class: "tl-row" }, [make("label", { "for": id, class: "tl-name" }, [task.name]), input, value, count]), input: input, value: value, count: count };
    });
    function set(values) { alphas = values; changed(); keep(); }
    function keep() { // beside the state of an editor
      var others = location.hash.slice(1).split("&").filter(function (part) { return /^edit=/.test(part); });
      if (first) history.replaceState(null, "", "#" + others.concat("network=" + alphas.join(",")).join("&"));
    }
    function constant(alpha) { return info.tasks.map(function () { return alpha; }); }
    var forget = button("", function () { set(info.tasks.map(function (_, t) { return t === chosen ? -info.alpha : 0; })); });
    select.addEventListener("change", function () { ask(Number(select.value)); });
    function ask(t) {
      chosen = t; select.value = t;
      forget.textContent = "forget " + info.tasks[t].name;
      pictures();
      if (own || why) answer(); else pick(t === info.opens[0] ? info.opens[1] : 0);
    }

    // Of all pictures, a few at a time, so that sliders keep moving: right by the merged network, and by its linearization.
    function tally(own, t, n, right) {
      if (own !== job) return;
      if (t === info.tasks.length) { live.dataset.done = String(own); return; }
      var task = info.tasks[t], batch = task.images.slice(n, n + PART), x = new Float32Array(batch.length * 3 * S * S);
      batch.forEach(function (image, i) { x.set(image, i * 3 * S * S); });
      var f = [net.features(x, false), net.features(x, true)];
      batch.forEach(function (_, i) {
        f.forEach(function (one, side) { right[side].push(best(net.logits(one, i, task)) === task.labels[n + i]); });
      });
      n += batch.length;
      if (n < task.images.length) { setTimeout(tally, 0, own, t, n, right); return; }
      var counts = right.map(function (one) { return one.filter(Boolean).length; });
      rows[t].count.replaceChildren(String(counts[0]), make("span", { class: "tl-other" }, [" " + counts[1]]));
      task.counts = counts; task.right = right[0];
      if (t === chosen) marked();
      setTimeout(tally, 0, own, t + 1, 0, [[], []]);
    }
    function changed() {
      rows.forEach(function (row, t) {
        row.input.value = alphas[t];
        row.value.textContent = signed(alphas[t]);
        row.input.setAttribute("aria-valuetext", signed(alphas[t]));
      });
      net.merge(alphas);
      answer();
      var own = ++job;
      setTimeout(function () { tally(own, 0, 0, [[], []]); }, 60);
    }

    var presets = make("div", { role: "group", "aria-label": "Presets" }, [
      button("add all", function () { set(constant(info.alpha)); }),
      button("pre-trained", function () { set(constant(0)); }), forget,
    ]);
    var count = info.tasks[0].labels.length, sure = info.abstention;
    var scope = "It knows drawings of " + S + " \u00d7 " + S + " pixels of the classes of these " + info.tasks.length + " tasks only. It answers if the cosine between your picture and a class is at least " +
      sure.cosine.toFixed(2) + ". At the opening coefficients it answers " + Math.round(sure.own) + " % of its own validation pictures, " + Math.round(sure.other) + " % of those of other tasks and " + Math.round(sure.noise) + " % of uniform noise.";
    live.append(
      make("div", { class: "tl-network" }, [
        make("div", {}, [make("p", { class: "tl-key", id: root.id + "-pad" }, ["Draw with a pointer or the arrow keys (Shift moves the brush), choose a picture, or drop one on the canvas."]), pad, make("div", {}, [button("clear", function () { nothing(EMPTY); }), button("choose a picture", function () { file.click(); }), file]), make("p", { class: "tl-key" }, [scope])]),
        make("div", {}, [make("p", {}, [make("label", {}, ["Question: ", select])]), status, answers,
          make("p", { class: "tl-key" }, [make("span", { class: "tl-dot tl-merged" }), " merged network, ", make("span", { class: "tl-dot tl-linear" }), " its linearization, same coefficients"])]),
        make("div", {}, [presets].concat(rows.map(function (row) { return row.node; }), [
          make("p", { class: "tl-key" }, ["The last column counts correct answers among " + count + " pictures a task: merged, then linearized."])])),
      ]),
      strip, make("p", { class: "tl-key" }, [info.told]));
    root.tasklab = { // for tests: logits of the first pictures of every task, merged and linearized
      logits: function (values, count) {
        net.merge(values);
        return [false, true].map(function (linear) { return info.tasks.map(function (task) {
          return task.images.slice(0, count).map(function (x) { return net.logits(net.features(x, linear), 0, task); });
        }); });
      },
    };
    live.style.setProperty("--tl-sprite", "url(" + sprite.src + ")");
    var kept = /(?:^#|&)network=([-\d.,]+)(?:&|$)/.exec(location.hash);
    kept = kept && first ? kept[1].split(",").map(Number) : [];
    if (kept.length === alphas.length && kept.every(function (a) { return a >= -1 && a <= 1; })) alphas = kept;
    net.merge(alphas);
    ask(info.opens[0]);
    changed();
  }

  function opened(text) {
    var image = new Image(), blob = bytes(text);
    image.onload = function () {
      WebAssembly.instantiate(bytes(KERNEL)).then(function (made) {
        live.replaceChildren();
        start(network(made.instance.exports, blob), image);
        if (document.activeElement === document.body) live.querySelector("canvas").focus({ preventScroll: true }); // its button is gone
      }, function () { live.textContent = "This browser has no WebAssembly with SIMD, which the network needs."; });
    };
    image.src = URL.createObjectURL(new Blob([blob.subarray(blob.length - info.picture_bytes)], { type: "image/png" }));
  }

  var inside = root.querySelector('script[type="text/plain"]');
  var load = button("Load the network (" + info.megabytes + " MB)", function () {
    load.disabled = true;
    if (inside) { opened(inside.textContent); return; }
    var script = make("script", { src: root.dataset.source }); // from a file, fetch is refused
    script.onload = function () { opened(window.tasklabNetwork); };
    script.onerror = function () { load.disabled = false; live.append(" It could not be loaded."); };
    document.head.append(script);
  });
  live.append(load);
})();
