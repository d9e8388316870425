"use strict";
// htmx requests the target of a link or a form and puts the answer into the page. A static page sends no request: a
// worker that runs the same Python answers.
document.addEventListener("tile:pin", ({ detail }) => {
  const at = new URL(location.href);
  for (const name of ["m", "n"]) at.searchParams.set(name, detail[name]);
  history.replaceState(history.state, "", at);
});

(() => {
  const python = document.body.dataset.python;
  if (!python) return;
  const waiting = new Map();
  const worker = new Worker(python, { type: "module" });
  let number = 0;

  function failed(error) {
    document.getElementById("progress")?.remove();
    document.querySelector("#main > .error")?.remove();
    const shown = document.createElement("pre");
    shown.className = "error";
    shown.role = "alert";
    shown.textContent = error;
    document.getElementById("main").prepend(shown);
  }

  worker.onerror = (event) => failed(`Python did not start in the browser. ${event.message ?? ""}`);
  worker.onmessage = ({ data }) => {
    if (data.failed) {
      failed(data.failed);
      return;
    }
    if (data.progress) {
      const shown = document.getElementById("progress");
      if (shown) shown.textContent = data.progress;
      return;
    }
    const { resolve, reject } = waiting.get(data.number);
    waiting.delete(data.number);
    if (data.error) reject(new Error(data.error));
    else resolve(new Response(data.html, { headers: { "Content-Type": "text/html", ...data.headers } }));
  };

  function answer(action, request) {
    return new Promise((resolve, reject) => {
      waiting.set(++number, { resolve, reject });
      const query = new URL(action, location.href).search;
      worker.postMessage({ number, query, restores: Boolean(request?.headers?.["HX-History-Restore-Request"]) });
    });
  }

  document.addEventListener("htmx:config:request", ({ detail }) => { detail.ctx.fetch = answer; });
  addEventListener("load", () => {
    htmx.ajax("GET", location.href, { target: "#app", swap: "innerHTML" }).catch(failed);
  });
})();
