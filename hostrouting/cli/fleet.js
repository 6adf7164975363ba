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
    group.querySelector(".count").textContent = shown;
    if (word) group.querySelector("details").open = true;
  }
});

document.addEventListener("click", event => {
  if (!event.target.matches("button")) return;
  // navigator.clipboard isn't there where a page comes by plain http.
  getSelection().selectAllChildren(event.target.parentElement.nextElementSibling);
  document.execCommand("copy");
});
