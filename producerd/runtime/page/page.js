// Refresh the page in place, so that it stays where it is scrolled to. Wait while the reader has text selected.
setInterval(async () => {
  if (!getSelection().isCollapsed) return;
  const gone = document.getElementById("gone");
  try {
    const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(4000) });
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(next.querySelector("main"));
    document.title = next.title;
    gone.hidden = true;
  } catch {
    gone.hidden = false;
  }
}, document.body.dataset.seconds * 1000);
