// A table or picture that is wider than the page scrolls in its frame: then the frame can be reached by the keyboard.
const width = new ResizeObserver((frames) => {
  for (const { target } of frames) {
    const scrolls = target.scrollWidth > target.clientWidth;
    scrolls ? target.setAttribute("tabindex", "0") : target.removeAttribute("tabindex");
  }
});

document$.subscribe(() => {
  setTimeout(() => {  // the theme makes the frames at the same moment
    for (const frame of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> img)")) width.observe(frame);
  });
});
