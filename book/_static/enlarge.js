// A figure's picture opens in a dialog of its page, in whose theme it is; without scripts its link leads to the file.
(function () {
  "use strict";
  function open(link) {
    var shown = link.querySelector("img"), picture = shown.cloneNode(), close = document.createElement("button");
    var dialog = document.createElement("dialog");
    dialog.className = "tasklab-enlarged";
    dialog.setAttribute("aria-label", shown.alt);
    close.textContent = "\u00d7";
    close.setAttribute("aria-label", "Close");
    picture.loading = "eager";
    var box = shown.getBoundingClientRect(); // its place is kept before it is loaded
    var whole = 0.96 * Math.min(innerWidth, innerHeight * box.width / box.height);
    picture.style.width = Math.max(shown.naturalWidth, whole, 1.4 * box.width) + "px";
    dialog.append(close, picture);
    dialog.addEventListener("click", function () { dialog.close(); });
    dialog.addEventListener("close", function () { dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal(); // Escape closes it, and the link has the focus again
  }

  document.addEventListener("click", function (event) {
    var link = event.target.closest("figure a.image-reference");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    open(link);
  });
  document.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll("figure a.image-reference").forEach(function (link) { link.title = "Enlarge"; });
  });
})();
