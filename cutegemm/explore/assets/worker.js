// Runs Python in the browser. It answers requests with the same function as the server.
let base = "";
const ready = start();
ready.catch((error) => postMessage({
  failed: `Python could not be loaded${base && ` from ${base}`}, so this page shows nothing.\n${error}\n`
    + "Reload it, or run `cutegemm explore`, which serves the same page without this download.",
}));

async function start() {
  const { pyodide: where, packages } = await (await fetch("python.json")).json();
  postMessage({ progress: "loading Python" });
  base = new URL(where, self.location.href).href;
  const { loadPyodide } = await import(new URL("pyodide.mjs", base).href);
  const pyodide = await loadPyodide({ indexURL: base });
  postMessage({ progress: "loading numpy" });
  await pyodide.loadPackage("numpy");
  postMessage({ progress: "loading cutegemm" });
  for (const name of packages) pyodide.unpackArchive(await (await fetch(name)).arrayBuffer(), "zip");
  return pyodide.pyimport("cutegemm.explore").respond;
}

onmessage = async ({ data: { number, query, restores } }) => {
  try {
    const respond = await ready;
    const answer = respond(query, restores);
    const [html, headers] = [answer.get(0), answer.get(1).toJs({ dict_converter: Object.fromEntries })];
    answer.destroy();
    postMessage({ number, html, headers });
  } catch (error) {
    postMessage({ number, error: String(error) });
  }
};
