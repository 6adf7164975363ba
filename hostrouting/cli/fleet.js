const filter = document.getElementById("filter");

filter.addEventListener("input", () => {
  const word = filter.value.toLowerCase();
  for (const group of document.querySelectorAll("section")) {
    let shown = 0;
    for (const host of group.querySelectorAll("li")) {
      host.hidden = !host.textContent.toLowerCase().includes(word);
      shown += !host.hidden;
    }
    group.hidden = !shown;
    for (const list of group.querySelectorAll("div")) list.hidden = !list.querySelector("li:not([hidden])");
    group.querySelector(".count").textContent = shown;
    if (word) group.querySelector("details").open = true;
  }
});

// navigator.clipboard isn't there where a page comes by plain http.
function copy(text) {
  const area = document.body.appendChild(document.createElement("textarea"));
  area.value = text;
  area.select();
  document.execCommand("copy");
  area.remove();
}

document.addEventListener("click", event => {
  const button = event.target;
  if (!button.matches("button")) return;
  if (button.matches(".names")) {
    const names = button.closest("details").querySelectorAll("li:not([hidden]) > span");
    copy([...names].map(name => name.textContent).join(","));
  } else {
    copy(button.parentElement.nextElementSibling.textContent);
  }
});
