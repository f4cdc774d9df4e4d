// MathJax's parts, packed: they are unpacked and run in the order in which its loader asks for them.
(function () {
  "use strict";
  var root = document.currentScript.src.replace(/[^/]*$/, "mathjax");
  var bytes = Uint8Array.from(atob("@DATA@"), function (c) { return c.charCodeAt(0); });
  var stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(stream).text().then(function (text) {
    var parts = JSON.parse(text);
    var own = window.MathJax || {};
    own.loader = {
      load: Object.keys(parts).slice(1).map(function (name) {
        return name.replace("input/tex/extensions", "[tex]");
      }),
      paths: { mathjax: root },
      require: function (url) { (0, eval)(parts[url.slice(root.length + 1).replace(/\.js$/, "")]); }
    };
    own.tex = { packages: { "[+]": ["ams", "newcommand", "boldsymbol"] } };
    own.startup = {
      pageReady: function () {
        return MathJax.startup.defaultPageReady().then(function () {
          document.dispatchEvent(new Event("tl-formulas-set"));
        });
      }
    };
    own.chtml = { fontURL: root + "/woff-v2" };
    window.MathJax = own;
    (0, eval)(parts.startup);
  });
})();
