(function () {
  "use strict";
  var root = document.getElementById("@ID@");
  if (!root || root.querySelector("form")) return; // a front end may run a script twice
  var rows = Array.prototype.slice.call(root.querySelectorAll("tbody tr"));

  function make(tag, attributes, children) {
    var node = document.createElement(tag);
    Object.keys(attributes).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    (children || []).forEach(function (child) { node.append(child); });
    return node;
  }

  function choice(name, all) {
    var values = rows.map(function (row) { return row.dataset[name]; });
    var select = make("select", {}, [make("option", { value: "" }, [all])]);
    values.filter(function (v, i) { return values.indexOf(v) === i; }).forEach(function (value) {
      select.append(make("option", { value: value }, [value]));
    });
    return select;
  }

  var outcome = choice("outcome", "all outcomes"), paper = choice("paper", "all papers");
  var groups = Array.prototype.slice.call(root.querySelectorAll(".tv-group"));
  var cells = Array.prototype.slice.call(root.querySelectorAll("[data-world]")), seen = {};
  var world = make("select", {}, [make("option", { value: "" }, ["all worlds"])]);
  cells.forEach(function (cell) {
    if (cell.tagName !== "TH" || seen[cell.textContent]) return;
    seen[cell.textContent] = true;
    world.append(make("option", { value: cell.dataset.world }, [cell.textContent]));
  });
  var several = world.length > 1;
  var words = make("input", { type: "search", placeholder: "words", size: 14 });
  var alone = make("input", { type: "checkbox" }); // by what is found on these tasks alone
  var differ = make("input", { type: "checkbox" }), every = make("button", { type: "button" }, ["open all"]);
  var scopes = rows.some(function (row) { return row.dataset.here !== row.dataset.outcome; });
  var parts = root.querySelector(".tv-parts input"), status = make("p", { role: "status" });
  var form = make("form", { "aria-label": "Filter" }, [
    make("label", several ? {} : { hidden: "" }, ["World ", world]),
    make("label", {}, ["Outcome ", outcome]),
    make("label", several ? {} : { hidden: "" }, [differ, " worlds differ"]),
    make("label", scopes ? {} : { hidden: "" }, [alone, " on these tasks alone"]),
    make("label", paper.length > 2 ? {} : { hidden: "" }, ["Paper ", paper]),
    make("label", {}, ["Search ", words]), parts.parentNode
  ]);
  if (groups.length) form.append(every);

  function show() {
    var asked = words.value.toLowerCase().split(/\s+/).filter(Boolean), shown = 0;
    var listed = rows.filter(function (row) { return parts.checked || row.className !== "tv-part"; });
    var side = (alone.checked ? "here" : "outcome") + world.value;
    rows.forEach(function (row) {
      var text = row.textContent.toLowerCase();
      row.hidden = !(listed.indexOf(row) >= 0 &&
        (!world.value || row.dataset[side]) &&
        (!outcome.value || row.dataset[side] === outcome.value) &&
        (!differ.checked || "differ" in row.dataset) &&
        (!paper.value || row.dataset.paper === paper.value) &&
        asked.every(function (word) { return text.indexOf(word) >= 0; }));
      shown += !row.hidden;
    });
    cells.forEach(function (cell) { cell.hidden = !!world.value && cell.dataset.world !== world.value; });
    var narrowed = outcome.value || paper.value || world.value || differ.checked || asked.length;
    groups.forEach(function (group) {
      var left = group.querySelectorAll("tbody tr:not([hidden])").length;
      group.hidden = !left;
      if (narrowed && left) group.open = true;
    });
    status.textContent = shown ? shown + " of " + listed.length + " rows" : "Nothing matches: fewer words?";
  }

  function reveal() { // the row that an address names, in a closed group too
    var row = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    var group = row && root.contains(row) && row.closest(".tv-group");
    if (!group || group.open) return;
    group.open = true;
    row.scrollIntoView();
  }

  var asked = new URLSearchParams(location.search); // verdicts.html?paper=Merging&outcome=holds
  [[outcome, "outcome"], [paper, "paper"]].forEach(function (pair) {
    var value = asked.get(pair[1]);
    if (value && pair[0].querySelector('option[value="' + CSS.escape(value) + '"]')) pair[0].value = value;
  });

  form.addEventListener("input", show);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  every.addEventListener("click", function () { groups.forEach(function (group) { group.open = true; }); });
  root.insertBefore(form, groups[0] || root.querySelector("table"));
  form.append(status);
  show();
  reveal();
  window.addEventListener("hashchange", reveal);
})();
