"use strict";
// A button that copies the code of a block, without prompts and the output below them.
const copied = (text) => {
  const lines = text.replace(/\n$/, "").split("\n");
  const prompt = lines.some((line) => /^>>> /.test(line)) ? /^(>>>|\.\.\.) ?/ : /^\$ /;
  const commands = lines.filter((line) => prompt.test(line));
  return (commands.length ? commands.map((line) => line.replace(prompt, "")) : lines).join("\n");
};

const write = async (text) => {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.body.appendChild(document.createElement("textarea"));
  area.value = text;
  area.select();
  document.execCommand("copy");
  area.remove();
};

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    if (block.closest(".cell_output")) continue;
    const button = block.appendChild(document.createElement("button"));
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await write(copied(block.querySelector("pre").textContent));
        button.textContent = "Copied";
      } catch {
        button.textContent = "Press Ctrl+C";
        getSelection().selectAllChildren(block.querySelector("pre"));
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
});
