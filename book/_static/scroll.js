// The keyboard reaches wide formulas and drawings where they scroll; the theme sees to code and tables.
(function () {
  "use strict";
  var sizes = new ResizeObserver(function (entries) {
    entries.forEach(function (entry) {
      var box = entry.target;
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; else box.removeAttribute("tabindex");
    });
  });
  function watch(chosen) {
    document.querySelectorAll(chosen).forEach(function (box) { sizes.observe(box); });
  }
  document.addEventListener("DOMContentLoaded", function () { watch(".bd-article .tl-wide"); });
  document.addEventListener("tl-formulas-set", function () { watch(".bd-article div.math mjx-container"); });
})();
