// A table that is wider than its page scrolls in a box of its own; here the box can be reached by keyboard.
const boxes = () => document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((box) => {
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Table");
});
new MutationObserver(boxes).observe(document.body, { childList: true, subtree: true });
boxes();
