"use strict";
// Show the CTA tile of a plan. All tables are embedded in the page, and pointing at an element only looks values up. Each
// HTML element of class `tile` is initialised once. Its listeners are removed after it has left the page.
function showTile(root) {
  const data = JSON.parse(root.querySelector("script.tables").textContent);
  const leaves = new AbortController(), shown = { signal: leaves.signal };
  const gone = () => { if (!root.isConnected) leaves.abort(); return !root.isConnected; };
  const WARP = 32, GROUP = 128, NOBODY = 0xffff;
  const [bm, bn, bk] = data.tile, [ownM, ownN] = data.own;
  const down = bm / ownM, across = bn / ownN, kCtas = down * across;  // CTAs that share K, and this tile
  const named = new Map([...root.querySelectorAll("[id]")].map((node) => [node.id, node]));
  const $ = (id) => named.get(id);
  const kinds = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array };

  function unpacked(packed) {
    if (!packed) return null;
    const text = atob(packed.data), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return new kinds[packed.type](bytes.buffer);
  }

  // Index in a table of D: m + bm * n. Index in a table of an operand: x + extent * k, where x is m or n. If the stages
  // are not shifts of the first stage, `smem` holds the tables of all stages, one after the other.
  const owner = unpacked(data.d.thread), value = unpacked(data.d.value);
  const operands = {};
  for (const [name, extent] of [["a", bm], ["b", bn]]) {
    const from = data[name];
    operands[name] = {
      name, extent, bits: from.bits, smem: unpacked(from.smem), shifts: from.shifts, copier: unpacked(from.copier),
      access: unpacked(from.access), readers: from.held ? readersOf(from, extent) : null,
    };
  }

  // For each warp and each element of a k-block: the first lane that holds it in a register (255: none), the index of the
  // value in that lane, and the mask of all lanes that hold it.
  function readersOf(from, extent) {
    const held = unpacked(from.held), values = held.length / data.threads, size = extent * data.kBlock;
    const warps = Math.ceil(data.threads / WARP);
    const lane = new Uint8Array(warps * size).fill(255), val = new Uint16Array(warps * size), mask = new Uint32Array(warps * size);
    for (let t = data.threads - 1; t >= 0; t--)
      for (let v = values - 1; v >= 0; v--) {
        const at = (t >> 5) * size + held[t * values + v];
        lane[at] = t & 31; val[at] = v; mask[at] |= 1 << (t & 31);
      }
    return { lane, val, mask, size, warps };
  }

  // The elements of D of thread t: cellsOf[start[t]] to cellsOf[start[t + 1] - 1].
  const start = new Uint32Array(data.threads + 1), cellsOf = new Uint32Array(bm * bn);
  for (const t of owner) if (t !== NOBODY) start[t + 1]++;
  for (let t = 0; t < data.threads; t++) start[t + 1] += start[t];
  const next = start.slice();
  for (let i = 0; i < bm * bn; i++) if (owner[i] !== NOBODY) cellsOf[next[owner[i]]++] = i;
  const valuesOfThread = Math.max(1, start[1]);

  const state = { m: 0, n: 0, k: 0, stage: 0, focus: "d", pinned: false, cell: 0, tile: 0 };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => (dark.matches ? data.colors.dark : data.colors.light);
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  function address(op, x, k) {
    const it = operands[op], at = x + it.extent * k, { stage } = state;
    return (it.shifts ? it.smem[at] + it.shifts[stage] : it.smem[at + it.extent * bk * stage]) * it.bits / 8;
  }
  const bankOf = (byte) => Math.floor(byte / data.bankBytes) % data.banks;
  const warpColour = (t) => ((t >> 5) % 8) * 4 + (t & 3);
  const hex = (byte) => "0x" + Math.floor(byte).toString(16).padStart(4, "0");

  // -- painting ---------------------------------------------------------------------------------------------
  const panels = {
    d: { rows: bm, cols: bn, colour: (m, n) => colourOfD(m + bm * n), who: (m, n) => owner[m + bm * n] },
    a: { rows: bm, cols: bk, colour: (m, k) => colourOfOperand("a", m, k) },
    b: { rows: bk, cols: bn, colour: (k, n) => colourOfOperand("b", n, k) },
  };
  for (const [name, panel] of Object.entries(panels)) {
    panel.base = $(name + "-base");
    panel.over = $(name + "-over");
  }

  function colourOfD(i) {
    const t = owner[i];
    if (t === NOBODY) return null;
    switch ($("color-d").value) {
      case "lane": return ["hues", t & 31];
      case "value": return ["ramp", Math.floor(value[i] * 16 / valuesOfThread)];
      default: return ["hues", warpColour(t)];
    }
  }

  function colourOfOperand(op, x, k) {
    const it = operands[op], i = x + it.extent * k;
    const how = $("color-ab").value;
    if (how === "copier") return it.copier ? ["hues", warpColour(it.copier[i])] : null;
    if (how === "reader") {
      if (!it.readers) return null;
      const e = x + it.extent * (k % data.kBlock), r = it.readers;
      for (let w = 0; w < r.warps; w++) if (r.lane[w * r.size + e] !== 255) return ["hues", warpColour(w * WARP + r.lane[w * r.size + e])];
      return null;
    }
    return ["hues", bankOf(address(op, x, k))];
  }

  function sized(canvas, width, height) {
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return pen;
  }

  function paint(name) {
    const { rows, cols, colour, base, over, who } = panels[name], cell = state.cell;
    const small = document.createElement("canvas");
    small.width = cols;
    small.height = rows;
    const image = new ImageData(cols, rows), table = { hues: theme().hues.map(rgb), ramp: theme().ramp.map(rgb) };
    const empty = rgb(theme().empty);
    for (let r = 0, at = 0; r < rows; r++)
      for (let c = 0; c < cols; c++, at += 4) {
        const found = colour(r, c), pixel = found ? table[found[0]][found[1]] : empty;
        image.data[at] = pixel[0]; image.data[at + 1] = pixel[1]; image.data[at + 2] = pixel[2]; image.data[at + 3] = 255;
      }
    small.getContext("2d").putImageData(image, 0, 0);
    const pen = sized(base, cols * cell, rows * cell);
    sized(over, cols * cell, rows * cell);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, 0, 0, cols * cell, rows * cell);
    pen.strokeStyle = theme().ink;
    if (who) {
      if (cell >= 4) borders(pen, rows, cols, cell, who, 0.28, 1);
      borders(pen, rows, cols, cell, (r, c) => who(r, c) >> 5, 1, 1.6);
    }
    pen.globalAlpha = 1;
    pen.lineWidth = 1.2;
    pen.strokeRect(0.5, 0.5, cols * cell - 1, rows * cell - 1);
  }

  function borders(pen, rows, cols, cell, who, alpha, width) {
    pen.beginPath();
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < cols; c++) {
        if (c && who(r, c) !== who(r, c - 1)) { pen.moveTo(c * cell, r * cell); pen.lineTo(c * cell, (r + 1) * cell); }
        if (r && who(r, c) !== who(r - 1, c)) { pen.moveTo(c * cell, r * cell); pen.lineTo((c + 1) * cell, r * cell); }
      }
    pen.globalAlpha = alpha;
    pen.lineWidth = width;
    pen.stroke();
  }

  // An image that dims all elements of D except those of one warp, one pixel per element; created when first needed.
  const veils = new Map();
  function veil(warp) {
    const key = warp + theme().paper;
    if (!veils.has(key)) {
      const out = document.createElement("canvas"), image = new ImageData(bn, bm), [r, g, b] = rgb(theme().paper);
      out.width = bn;
      out.height = bm;
      for (let m = 0; m < bm; m++)
        for (let n = 0; n < bn; n++) {
          const at = 4 * (m * bn + n);
          image.data.set([r, g, b, owner[m + bm * n] >> 5 === warp ? 0 : 120], at);
        }
      out.getContext("2d").putImageData(image, 0, 0);
      veils.set(key, out);
    }
    return veils.get(key);
  }

  function cleared(name) {
    const pen = panels[name].over.getContext("2d");
    pen.clearRect(0, 0, panels[name].cols * state.cell, panels[name].rows * state.cell);
    return pen;
  }

  function band(pen, name, row, col) {
    const { rows, cols } = panels[name], cell = state.cell;
    const box = row === null ? [col * cell, 0, cell, rows * cell] : [0, row * cell, cols * cell, cell];
    pen.strokeStyle = theme().ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(box[0] - 0.5, box[1] - 0.5, box[2] + 1, box[3] + 1);
  }

  function dot(pen, row, col) {
    const cell = state.cell, grow = Math.max(0, 3 - cell / 2);
    pen.fillStyle = theme().ink;
    pen.fillRect(col * cell - grow, row * cell - grow, cell + 2 * grow, cell + 2 * grow);
    pen.fillStyle = theme().paper;
    const inner = Math.max(2, cell / 3);
    pen.fillRect((col + 0.5) * cell - inner / 2, (row + 0.5) * cell - inner / 2, inner, inner);
  }

  function highlight() {
    const { m, n, k, cell, focus } = state, t = owner[m + bm * n];
    const d = cleared("d"), a = cleared("a"), b = cleared("b");
    if (focus === "d") {
      d.imageSmoothingEnabled = false;
      if (t !== NOBODY) {
        d.drawImage(veil(t >> 5), 0, 0, bn * cell, bm * cell);
        d.strokeStyle = theme().ink;
        d.lineWidth = 1.5;
        d.beginPath();
        for (let i = start[t]; i < start[t + 1]; i++)
          d.rect(Math.floor(cellsOf[i] / bm) * cell, (cellsOf[i] % bm) * cell, cell, cell);
        d.stroke();
      }
      dot(d, m, n);
      band(a, "a", m, null);
      band(b, "b", null, n);
    } else if (focus === "a") {
      band(d, "d", m, null);
      band(b, "b", k, null);
      dot(a, m, k);
    } else {
      band(d, "d", null, n);
      band(a, "a", null, k);
      dot(b, k, n);
    }
  }

  // -- texts ------------------------------------------------------------------------------------------------
  const put = (id, text) => { const node = $(id); if (node && node.textContent !== text) node.textContent = text; };
  const times = (...parts) => parts.join(" × ");

  function thread(t) {
    const at = t + data.firstThread;
    return { cta: at, warp: at >> 5, lane: at & 31, group: Math.floor(at / GROUP) };
  }

  function register(v) {
    const bits = data.accBits, first = Math.floor(v * bits / 32);
    if (bits > 32) return `registers ${first} and ${first + bits / 32 - 1}`;
    return bits === 32 ? `register ${first}` : `register ${first}, bits ${v * bits % 32}..${v * bits % 32 + bits - 1}`;
  }

  function reader(op, x, k, t) {
    const r = operands[op].readers;
    if (!r) return "shared";
    const at = (t >> 5) * r.size + x + operands[op].extent * (k % data.kBlock);
    if (r.lane[at] === 255) return "";
    return (r.mask[at] >>> (t & 31)) & 1 ? `own V${r.val[at]}` : `L${r.lane[at]} V${r.val[at]}`;
  }

  function tile() {
    if (!data.grid) return null;
    const { m: gm, n: gn } = data.grid, at = state.tile;
    return { m: at % gm, n: Math.floor(at / gm) % gn, l: Math.floor(at / (gm * gn)), position: grid.position[at] };
  }

  const unit = (position) => (kCtas === 1 ? `CTA ${position}` : `tile ${position}, of ${kCtas} CTAs,`);

  function say() {
    const { m, n, k, focus } = state, i = m + bm * n, t = owner[i], nobody = t === NOBODY, who = thread(nobody ? 0 : t);
    const here = tile();
    const shift = here ? [here.m * bm, here.n * bn] : [0, 0];
    const place = (r, c) => `[${r}, ${c}]`;
    if (focus === "d") {
      put("element", "D" + place(m + shift[0], n + shift[1]));
      put("f-thread", nobody ? "no thread" : `${who.cta}: warp ${who.warp}, lane ${who.lane}`);
      put("f-value", nobody ? "" : `V${value[i]} of ${start[t + 1] - start[t]}`);
      put("f-register", nobody ? "" : register(value[i]));
      put("f-inputs", `A[${m + shift[0]}, k], B[k, ${n + shift[1]}]`);
    } else {
      const x = focus === "a" ? m : n, it = operands[focus], byte = address(focus, x, k), e = x + it.extent * k;
      put("element", focus === "a" ? `A[${m + shift[0]}, ${k}]` : `B[${k}, ${n + shift[1]}]`);
      put("f-thread", it.copier ? `copied by thread ${it.copier[e]}, access ${it.access[e]}` : "copied in bulk");
      put("f-value", `${hex(byte)} of ${focus.toUpperCase()}`);
      put("f-register", `bank ${bankOf(byte)}`);
      put("f-inputs", focus === "a" ? `row ${m + shift[0]} of D` : `column ${n + shift[1]} of D`);
    }
    put("l-thread", focus === "d" ? "thread" : "copy");
    put("l-value", focus === "d" ? "value" : "address");
    put("l-register", focus === "d" ? "accumulator" : "bank");
    put("l-inputs", focus === "d" ? "fed by" : "feeds");
    put("f-local", `m ${m}, n ${n}` + (focus === "d" ? "" : `, k ${k}`));
    if (focus === "d" && !nobody) {
      put("p-warpgroup", String(who.group));
      put("p-warp", String(who.warp));
      put("p-thread", `lane ${who.lane}`);
      put("s-thread", `thread ${who.cta} of ${data.ctaThreads}, ${start[t + 1] - start[t]} ${data.holds} each`);
      put("p-value", `V${value[i]}`);
      put("s-value", `accumulator ${register(value[i])}; ${data.atom}`);
    }
    if (here) {
      put("p-grid", `(${here.m}, ${here.n}${data.grid.l > 1 ? `, ${here.l}` : ""})`);
      const wave = data.grid.wave ? `, wave ${Math.floor(here.position / data.grid.wave)}` : "";
      put("s-grid", `${unit(here.position)} of ${times(data.grid.m, data.grid.n, data.grid.l)}${wave}; ${data.raster}`);
      const [cm, cn] = data.cluster;
      const row = here.m * down + Math.floor(m / ownM), column = here.n * across + Math.floor(n / ownN);
      put("p-cluster", `(${Math.floor(row / cm)}, ${Math.floor(column / cn)})`);
      put("p-cta", `(${row % cm}, ${column % cn})`);
    }
    rows(nobody ? 0 : t);
  }

  const body = $("feeds").querySelector("tbody"), lines = [];
  for (let k = 0; k < bk; k++) {
    const row = body.insertRow();
    const cells = Array.from({ length: 7 }, (_, c) => { const cell = row.insertCell(); if (c === 4) cell.className = "b"; return cell; });
    cells[0].textContent = k;
    for (const c of [2, 5]) { const chip = document.createElement("i"); chip.className = "bank"; cells[c].append(chip); }
    lines.push({ row, cells });
  }

  function rows(t) {
    const { m, n, focus } = state;
    for (let k = 0; k < bk; k++) {
      const { row, cells } = lines[k];
      row.className = focus !== "d" && k === state.k ? "now" : "";
      for (const [op, x, c] of [["a", m, 1], ["b", n, 4]]) {
        const byte = address(op, x, k), bank = bankOf(byte), chip = cells[c + 1].firstChild;
        cells[c].textContent = hex(byte);
        chip.textContent = bank;
        chip.style.background = theme().hues[bank];
        cells[c + 2].textContent = reader(op, x, k, t);
      }
    }
  }

  function lens() {
    const canvas = $("lens"), w = 38, h = 30, cols = 9, rows = 9;
    const pen = sized(canvas, cols * w, rows * h);
    const left = Math.max(0, Math.min(bn - cols, state.n - 4)), top = Math.max(0, Math.min(bm - rows, state.m - 4));
    pen.textAlign = "center";
    pen.font = "11px ui-monospace, Menlo, Consolas, monospace";
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < cols; c++) {
        const m = top + r, n = left + c;
        if (m >= bm || n >= bn) continue;
        const found = colourOfD(m + bm * n), t = owner[m + bm * n];
        pen.fillStyle = found ? theme()[found[0]][found[1]] : theme().empty;
        pen.fillRect(c * w, r * h, w - 1, h - 1);
        if (t === NOBODY) continue;
        pen.fillStyle = theme().ink;
        pen.fillText("T" + thread(t).cta, (c + 0.5) * w, r * h + 13);
        pen.globalAlpha = 0.7;
        pen.fillText("V" + value[m + bm * n], (c + 0.5) * w, r * h + 25);
        pen.globalAlpha = 1;
        if (m === state.m && n === state.n) { pen.strokeStyle = theme().ink; pen.lineWidth = 2.5; pen.strokeRect(c * w + 0.5, r * h + 0.5, w - 2, h - 2); }
      }
    put("lens-name", `D around row ${state.m}, column ${state.n}`);
  }

  let waiting = false;
  function refresh() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; highlight(); say(); lens(); });
  }

  let spoken = 0;
  function speak() {
    clearTimeout(spoken);
    spoken = setTimeout(() => {
      const t = owner[state.m + bm * state.n], who = t === NOBODY ? null : thread(t);
      put("live", who ? `D row ${state.m}, column ${state.n}: warp ${who.warp}, lane ${who.lane}, value ${value[state.m + bm * state.n]}` : "no thread");
    }, 250);
  }

  // -- pointing ---------------------------------------------------------------------------------------------
  function select(focus, row, col) {
    const rows = panels[focus].rows, cols = panels[focus].cols;
    row = Math.max(0, Math.min(rows - 1, row));
    col = Math.max(0, Math.min(cols - 1, col));
    state.focus = focus;
    if (focus === "d") { state.m = row; state.n = col; }
    if (focus === "a") { state.m = row; state.k = col; }
    if (focus === "b") { state.k = row; state.n = col; }
    refresh();
    speak();
  }

  function at(event) {
    const box = event.currentTarget.getBoundingClientRect();
    return [Math.floor((event.clientY - box.top) / state.cell), Math.floor((event.clientX - box.left) / state.cell)];
  }

  function current(name) {
    return name === "d" ? [state.m, state.n] : name === "a" ? [state.m, state.k] : [state.k, state.n];
  }

  for (const name of ["d", "a", "b"]) {
    const canvas = panels[name].over;
    canvas.addEventListener("pointermove", (event) => { if (!state.pinned) select(name, ...at(event)); });
    canvas.addEventListener("click", (event) => {
      const [row, col] = at(event), [r, c] = current(name);
      const same = state.pinned && state.focus === name && r === row && c === col;
      select(name, row, col);
      pin(!same);
    });
    canvas.addEventListener("keydown", (event) => {
      const [row, col] = current(name), step = event.shiftKey ? 8 : 1, { rows, cols } = panels[name];
      const to = {
        ArrowUp: [row - step, col], ArrowDown: [row + step, col], ArrowLeft: [row, col - step], ArrowRight: [row, col + step],
        Home: [row, 0], End: [row, cols - 1], PageUp: [0, col], PageDown: [rows - 1, col],
      }[event.key];
      if (to) select(name, ...to);
      else if (event.key === "Enter" || event.key === " ") pin(!state.pinned);
      else if (event.key === "Escape") pin(false);
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("focus", () => { if (!state.pinned) select(name, ...current(name)); });
  }

  function pin(on) {
    state.pinned = on;
    $("pin").setAttribute("aria-pressed", String(on));
    $("pin").textContent = on ? "pinned" : "follows the pointer";
    if (on) root.dispatchEvent(new CustomEvent("tile:pin", { bubbles: true, detail: { m: state.m, n: state.n } }));
  }

  // -- the grid ---------------------------------------------------------------------------------------------
  const grid = data.grid ? { position: unpacked(data.grid.position), inverse: null, cell: 0 } : null;

  function paintGrid() {
    const { m: gm, n: gn, wave } = data.grid, total = gm * gn * data.grid.l, size = Math.min(wave || total, total);
    grid.cell = Math.max(1, Math.min(22, Math.floor(336 / Math.max(gn, gm * 0.8))));
    const pen = sized($("grid-base"), gn * grid.cell, gm * grid.cell), slice = gm * gn * Math.floor(state.tile / (gm * gn));
    for (let m = 0; m < gm; m++)
      for (let n = 0; n < gn; n++) {
        const p = grid.position[slice + m + gm * n];
        pen.fillStyle = theme().hues[(Math.floor(p / size) % 8) * 4 + Math.floor((p % size) * 4 / size)];
        pen.fillRect(n * grid.cell, m * grid.cell, grid.cell - (grid.cell > 4 ? 1 : 0), grid.cell - (grid.cell > 4 ? 1 : 0));
      }
    markTile();
  }

  function markTile() {
    const here = tile(), cell = grid.cell, pen = sized($("grid-over"), data.grid.n * cell, data.grid.m * cell);
    const grow = Math.max(0, 4 - cell / 2);
    pen.strokeStyle = theme().ink;
    pen.lineWidth = 2;
    pen.strokeRect(here.n * cell - grow, here.m * cell - grow, cell + 2 * grow - 1, cell + 2 * grow - 1);
    const wave = data.grid.wave ? `, wave ${Math.floor(here.position / data.grid.wave)}` : "";
    put("grid-name", `tile (${here.m}, ${here.n})${data.grid.l > 1 ? ` of batch ${here.l}` : ""}: ${kCtas === 1 ? `CTA ${here.position}` : `${here.position} in the order, of ${kCtas} CTAs`}${wave}`);
    $("order").value = here.position;
  }

  function toTile(index) {
    const slice = data.grid.m * data.grid.n, other = Math.floor(index / slice) !== Math.floor(state.tile / slice);
    state.tile = index;
    if (other) paintGrid(); else markTile();
    refresh();
  }

  if (grid) {
    const { m: gm, n: gn, l } = data.grid;
    grid.inverse = new Uint32Array(gm * gn * l);
    grid.position.forEach((p, i) => { grid.inverse[p] = i; });
    state.tile = grid.inverse[0];
    $("order").max = gm * gn * l - 1;
    $("order").addEventListener("input", () => toTile(grid.inverse[Number($("order").value)]));
    $("grid-over").addEventListener("pointermove", (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      const m = Math.min(gm - 1, Math.max(0, Math.floor((event.clientY - box.top) / grid.cell)));
      const n = Math.min(gn - 1, Math.max(0, Math.floor((event.clientX - box.left) / grid.cell)));
      toTile(gm * gn * Math.floor(state.tile / (gm * gn)) + m + gm * n);
    });
  }

  // -- size, colours, start ---------------------------------------------------------------------------------
  function fitted() {
    const style = getComputedStyle($("gemm")), gap = 10;
    const room = $("gemm").clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - gap;
    return Math.max(0.5, Math.min(18, Math.floor(4 * room / (bn + bk)) / 4, Math.floor(4 * 1100 / (bm + bk)) / 4));
  }

  function legend() {
    const how = $("color-d").value, node = $("legend");
    node.textContent = "";
    const add = (colour, text) => {
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.style.background = colour;
      item.append(swatch, text);
      node.append(item);
    };
    const warps = Math.ceil(data.threads / WARP), first = data.firstThread >> 5;
    if (how === "warp") for (let w = 0; w < Math.min(warps, 16); w++) add(theme().hues[(w % 8) * 4 + 1], `warp ${w + first}`);
    if (how === "lane") for (let t = 0; t < 32; t += 4) add(theme().hues[t + 1], `lanes ${t}–${t + 3}`);
    if (how === "value") for (let v = 0; v < 16; v += 5) add(theme().ramp[v], `V${Math.floor(v * valuesOfThread / 16)}`);
  }

  function repaint() {
    const zoom = $("zoom").value;
    state.cell = zoom === "fit" ? fitted() : Number(zoom);
    for (const name of ["d", "a", "b"]) paint(name);
    legend();
    if (grid) paintGrid();
    refresh();
  }

  for (const id of ["color-d", "color-ab", "zoom"]) $(id).addEventListener("change", repaint);
  $("stage").addEventListener("change", () => { state.stage = Number($("stage").value); repaint(); });
  $("pin").addEventListener("click", () => pin(!state.pinned));
  dark.addEventListener("change", () => gone() || repaint(), shown);
  addEventListener("resize", () => { if (!gone() && $("zoom").value === "fit" && fitted() !== state.cell) repaint(); }, shown);

  const asked = new URLSearchParams(location.hash.slice(1));
  state.m = Math.max(0, Math.min(bm - 1, Number(asked.get("m") ?? root.dataset.m) || 0));
  state.n = Math.max(0, Math.min(bn - 1, Number(asked.get("n") ?? root.dataset.n) || 0));
  repaint();
  root.dataset.ready = "yes";
}

function showTiles() {
  for (const root of document.querySelectorAll(".tile:not([data-ready])")) showTile(root);
}

document.addEventListener("htmx:after:swap", showTiles);
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", showTiles); else showTiles();
