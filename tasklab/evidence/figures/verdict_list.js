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
  var words = make("input", { type: "search", placeholder: "words", size: 14 });
  var alone = make("input", { type: "checkbox" }); // by what is found on these tasks alone
  var differ = rows.some(function (row) { return row.dataset.here !== row.dataset.outcome; });
  var parts = root.querySelector(".tv-parts input"), status = make("p", { role: "status" });
  var form = make("form", { "aria-label": "Filter" }, [
    make("label", {}, ["Outcome ", outcome]),
    make("label", differ ? {} : { hidden: "" }, [alone, " on these tasks alone"]),
    make("label", paper.length > 2 ? {} : { hidden: "" }, ["Paper ", paper]),
    make("label", {}, ["Search ", words]), parts.parentNode
  ]);

  function show() {
    var asked = words.value.toLowerCase().split(/\s+/).filter(Boolean), shown = 0;
    var listed = rows.filter(function (row) { return parts.checked || row.className !== "tv-part"; });
    rows.forEach(function (row) {
      var text = row.textContent.toLowerCase();
      row.hidden = !(listed.indexOf(row) >= 0 &&
        (!outcome.value || row.dataset[alone.checked ? "here" : "outcome"] === outcome.value) &&
        (!paper.value || row.dataset.paper === paper.value) &&
        asked.every(function (word) { return text.indexOf(word) >= 0; }));
      shown += !row.hidden;
    });
    status.textContent = shown ? shown + " of " + listed.length + " rows" : "Nothing matches: fewer words?";
  }

  var asked = new URLSearchParams(location.search); // verdicts.html?paper=Merging&outcome=holds
  [[outcome, "outcome"], [paper, "paper"]].forEach(function (pair) {
    var value = asked.get(pair[1]);
    if (value && pair[0].querySelector('option[value="' + CSS.escape(value) + '"]')) pair[0].value = value;
  });

  form.addEventListener("input", show);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  root.insertBefore(form, root.querySelector("table"));
  form.append(status);
  show();
})();
