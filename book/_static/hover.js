// What a link leads to, in a small box beside it: a figure with its caption, or a paper. The page carries the text.
(function () {
  "use strict";
  var tips = {};  // at the end of the page, which is still to come
  document.addEventListener("DOMContentLoaded", function () {
    var data = document.getElementById("tl-tips");
    if (data) tips = JSON.parse(data.textContent);
  });
  var top = (document.documentElement.dataset.content_root || "./"), box = null, of = null, waits = 0;

  function hide() {
    clearTimeout(waits);
    if (of) of.removeAttribute("aria-describedby");
    if (box) box.remove();
    box = of = null;
  }
  function show(link) {
    var told = tips[link.getAttribute("href")], place = link.getBoundingClientRect();
    hide();
    box = document.createElement("div");
    of = link;
    box.className = "tl-tip";
    box.id = "tl-tip";
    box.setAttribute("role", "tooltip");
    if (told[1]) {
      var picture = document.createElement("img");
      picture.src = top + told[1];
      picture.alt = "";
      if (told[2]) picture.className = "photographs";
      picture.onload = function () { if (box) put(place); };
      box.append(picture);
    }
    box.append(document.createTextNode(told[0]));
    document.body.append(box);
    link.setAttribute("aria-describedby", "tl-tip");
    put(place);
  }
  function put(place) {
    var below = place.bottom + 8, height = box.offsetHeight, left = Math.min(place.left, document.documentElement.clientWidth - box.offsetWidth - 12);
    if (below + height > innerHeight && place.top - height > 8) below = place.top - height - 8;
    box.style.top = below + "px";
    box.style.left = Math.max(12, left) + "px";
  }
  function linked(event) {
    var link = event.target.closest && event.target.closest("article a[href]");
    return link && tips[link.getAttribute("href")] ? link : null;
  }

  document.addEventListener("mouseover", function (event) {
    var link = linked(event);
    clearTimeout(waits);
    if (link) waits = setTimeout(show, 150, link);
    else if (box && !box.contains(event.target)) hide();
  });
  document.addEventListener("focusin", function (event) {
    var link = linked(event);
    if (link && link.matches(":focus-visible")) show(link); else hide();
  });
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
})();
