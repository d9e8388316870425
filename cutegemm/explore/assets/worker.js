// Python in the browser: it answers what a server would, with the same function.
const ready = start();

async function start() {
  const { pyodide: where, packages } = await (await fetch("python.json")).json();
  postMessage({ progress: "loading Python" });
  const base = new URL(where, self.location.href).href;
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
    const found = respond(query, restores);
    const [html, headers] = [found.get(0), found.get(1).toJs({ dict_converter: Object.fromEntries })];
    found.destroy();
    postMessage({ number, html, headers });
  } catch (error) {
    postMessage({ number, error: String(error) });
  }
};
