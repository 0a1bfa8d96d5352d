// The waterfall beside a transcript on wide screens: the selected span is the same in both.

import { find } from "./waterfall.js";

let isFollowing = false;

function choose(block) {
  for (const other of document.querySelectorAll(".transcript .chosen")) if (other !== block) other.classList.remove("chosen");
  block?.classList.add("chosen");
}

function blockOf(element) {
  return element.closest?.(".transcript .call, .transcript .span-line") ?? element.closest?.(".transcript .msg");
}

// The id of the span of a block: of a call without a span, it is that of the message.
function spanOf(block) {
  const link = block.querySelector("a.nr") ?? block.closest(".msg")?.querySelector("a.nr");
  return link && new URL(link.href).searchParams.get("span");
}

document.addEventListener("rollbook:span", (event) => {
  if (isFollowing) return;
  const anchor = document.getElementById(`entry-${event.detail}`);
  const block = anchor && (blockOf(anchor) ?? anchor.nextElementSibling);
  choose(block);
  if (!block) return;
  for (let fold = block.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  block.scrollIntoView({ block: "start" });
});

document.addEventListener("click", (event) => {
  const block = blockOf(event.target);
  if (!block || event.target.closest("a, button, summary, input, textarea")) return;
  choose(block);
  isFollowing = true;
  find(spanOf(block));
  isFollowing = false;
});
