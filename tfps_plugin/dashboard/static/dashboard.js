// The live page of a job. Everything that it shows comes from the messages of
// /stream; texts of the job go into the page as text, never as HTML.
"use strict";

// Seconds that the curves show: all that there is, within these limits.
const LONGEST = 600;
const SHORTEST = 60;
const COLORS = [
  "#2563eb", "#b45309", "#1a7f4b", "#a21caf", "#0e7490", "#c22a2a", "#6d5bd0",
  "#64748b",
];
const UNKNOWN = "–";

let points = [];

const find = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---- Quantities ---------------------------------------------------------

function number(value) {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (Math.abs(value) >= limit) return Number((value / limit).toPrecision(3)) + unit;
  }
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return UNKNOWN;
  for (const [limit, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (bytes >= limit) return Number((bytes / limit).toPrecision(3)) + " " + unit;
  }
  return Math.round(bytes) + " B";
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  const minutes = Math.floor(whole / 60);
  const hours = Math.floor(minutes / 60);
  const days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  if (minutes) return `${minutes} min ${whole % 60} s`;
  return `${whole} s`;
}

const share = (value) =>
  value === null || value === undefined ? UNKNOWN : Math.round(100 * value) + " %";

const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

// ---- Head and tiles -----------------------------------------------------

function showHead(state) {
  const job = state.job;
  find("program").textContent = state.program;
  document.title = `${state.program} – tfps`;
  const parts = [job.work || (job.is_running ? "custom loop" : "nothing runs yet")];
  if (job.work && !job.is_running) parts.push("ended");
  parts.push(state.consistency);
  parts.push(`chief on ${state.chief.host}, process ${state.chief.process_id}`);
  parts.push(`up ${duration(state.chief.uptime_seconds)}`);
  find("work").textContent = parts.join(" · ");
  find("steps-per-second").textContent = number(job.steps_per_second);
  find("examples-per-second").textContent = number(job.examples_per_second);
  const loss = job.metrics.loss;
  find("loss").textContent =
    typeof loss === "number" ? String(Number(loss.toPrecision(4))) : loss || UNKNOWN;
  let epoch = UNKNOWN;
  if (job.epoch !== null) {
    epoch = job.num_epochs ? `${job.epoch} of ${job.num_epochs}` : `${job.epoch}`;
  }
  find("epoch").textContent = epoch;
  find("epoch-more").textContent = job.step === null ? "" :
    `step ${job.step.toLocaleString("en")}` +
    (job.steps_per_epoch ? ` of ${job.steps_per_epoch.toLocaleString("en")}` : "");
  find("steps-per-second-more").textContent =
    `${job.total_steps.toLocaleString("en")} steps so far`;
  find("loss-more").textContent = Object.entries(job.metrics)
    .filter(([name]) => name !== "loss")
    .map(([name, value]) =>
      `${name} ${typeof value === "number" ? Number(value.toPrecision(4)) : value}`)
    .join(", ");
  const tasks = [state.chief, ...state.workers, ...state.parameter_servers];
  const healthy = tasks.filter((task) => task.health === "healthy").length;
  find("healthy").textContent = `${healthy} of ${tasks.length}`;
  const checkpoint = state.last_checkpoint;
  find("checkpoint").textContent =
    checkpoint === null ? "none" : duration(state.time - checkpoint.written_at) + " ago";
  find("checkpoint-more").textContent =
    checkpoint === null ? "" : checkpoint.path.split("/").pop();
}

// ---- Cluster ------------------------------------------------------------

function taskBox(task, lines) {
  const box = element("div", `task ${task.health}`);
  box.dataset.task = `${task.job} ${task.index}`;
  box.dataset.health = task.health;
  box.append(element("span", "health", task.health));
  box.append(element("strong", "", task.job === "chief" ? "chief" : `${task.job} ${task.index}`));
  for (const line of lines) box.append(element("p", "", line));
  if (task.detail) {
    const detail = element("p", "", task.detail);
    box.append(detail);
    box.title = task.detail;
  }
  return box;
}

function showMap(state) {
  const row = (label, boxes) => {
    const made = element("div", "row");
    made.append(element("div", "label", label), ...boxes);
    return made;
  };
  const restarts = (task) =>
    task.num_restarts ? ` · back ${task.num_restarts}×` : "";
  const common = (task) => [
    task.address,
    `CPU ${number(task.processors)} · memory ${size(task.memory_bytes)}`,
    `up ${duration(task.uptime_seconds)}${restarts(task)}`,
  ];
  find("map").replaceChildren(
    row("chief", [taskBox(state.chief, common(state.chief))]),
    row("workers", state.workers.map((worker) => taskBox(worker, [
      `${number(worker.steps_per_second)} steps/s · ${worker.closures_in_flight} in flight`,
      ...common(worker),
    ]))),
    row("ps", state.parameter_servers.map((ps) => taskBox(ps, [
      `holds ${size(ps.num_bytes)}`,
      `in ${size(ps.received_bytes_per_second)}/s · out ${size(ps.sent_bytes_per_second)}/s`,
      ...common(ps),
    ]))),
  );
}

// ---- Bars ---------------------------------------------------------------

function barLine(label, parts, value) {
  const line = element("div", "bar-line");
  const bar = element("div", "bar");
  for (const [className, part, text] of parts) {
    const piece = element("span", className);
    piece.style.width = `${Math.min(100, 100 * part)}%`;
    piece.title = text;
    bar.append(piece);
  }
  line.append(element("span", "", label), bar, element("span", "value", value));
  return line;
}

function showWorkers(state) {
  find("workers").replaceChildren(...state.workers.map((worker) => barLine(
    `worker ${worker.index}`,
    ["input", "compute", "wait"]
      .map((name) => [name, worker[`${name}_share`]])
      .filter(([, part]) => part !== null)
      .map(([name, part]) => [name, part, `${name} ${share(part)}`]),
    worker.steps_per_second === null
      ? worker.health === "healthy" ? UNKNOWN : worker.health
      : `${number(worker.steps_per_second)} steps/s`,
  )));
}

function showServers(state) {
  const lines = [];
  for (const ps of state.parameter_servers) {
    const limit = ps.memory_limit_bytes;
    const used = limit && ps.memory_bytes !== null ? ps.memory_bytes / limit : 0;
    lines.push(barLine(
      `ps ${ps.index}`,
      [["compute", used, `${share(used)} of ${size(limit)}`]],
      `${size(ps.memory_bytes)} of ${size(limit)}`,
    ));
    const tables = ps.tables.slice(0, 3).map((table) =>
      table.rows_per_second === null
        ? `${table.name} ${size(table.num_bytes)}`
        : `${table.name} ${number(table.rows_per_second)} rows/s`);
    if (tables.length) lines.push(element("div", "tables", tables.join(", ")));
  }
  find("servers").replaceChildren(...lines);
}

// ---- Events -------------------------------------------------------------

function showEvents(state) {
  const list = find("events");
  if (!state.events.length) {
    list.replaceChildren(element("li", "none", "Nothing has happened yet."));
  } else {
    list.replaceChildren(...[...state.events].reverse().map((event) => {
      const item = element("li");
      item.dataset.kind = event.kind;
      item.append(
        element("time", "", clock(event.time)),
        element("span", event.level, event.text),
      );
      return item;
    }));
  }
  const marks = [];
  const span = spanOfCurves();
  const from = state.time - span;
  for (const event of state.events) {
    if (event.time < from) continue;
    const mark = element("i", event.level);
    mark.style.left = `${(100 * (event.time - from)) / span}%`;
    mark.title = `${clock(event.time)} ${event.text}`;
    marks.push(mark);
  }
  find("timeline").replaceChildren(
    element("span", "", `${duration(span)} ago`), element("span", "now", "now"), ...marks);
}

// ---- Curves -------------------------------------------------------------

const style = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function spanOfCurves() {
  if (!points.length) return SHORTEST;
  const span = points[points.length - 1].time - points[0].time;
  return Math.min(LONGEST, Math.max(SHORTEST, span));
}

class Chart {
  // `series` returns the names and the values of a point, by name.
  constructor(id, series) {
    this.place = find(id);
    this.series = series;
    this.names = [];
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(this.place);
  }

  resize() {
    if (this.plot) this.plot.setSize(this.dimensions());
  }

  dimensions() {
    // A legend takes the rest of the height.
    const legend = this.names.length > 1 ? 30 : 0;
    return { width: this.place.clientWidth, height: this.place.clientHeight - legend };
  }

  show() {
    const columns = points.map((point) => this.series(point));
    const names = [...new Set(columns.flatMap((column) => Object.keys(column)))];
    const data = [
      points.map((point) => point.time),
      ...names.map((name) => columns.map((column) => column[name] ?? null)),
    ];
    if (!this.plot || names.join() !== this.names.join()) {
      this.names = names;
      if (this.plot) this.plot.destroy();
      this.plot = this.make(names, data);
    } else {
      this.plot.setData(data);
    }
  }

  make(names, data) {
    const axis = {
      stroke: style("--dim"),
      grid: { stroke: style("--border"), width: 1 },
      ticks: { stroke: style("--border"), width: 1 },
      font: "11px system-ui, sans-serif",
    };
    return new uPlot({
      ...this.dimensions(),
      cursor: { drag: { x: false, y: false } },
      scales: {
        x: { range: (_, __, last) => [last - spanOfCurves(), last] },
        y: { range: (_, low, high) => uPlot.rangeNum(Math.min(0, low ?? 0), high || 1, 0.1, true) },
      },
      legend: { show: names.length > 1, live: false },
      axes: [{ ...axis, space: 80, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 56, values: (_, ticks) => ticks.map(number) }],
      series: [
        { label: "time", value: (_, time) => (time === null ? UNKNOWN : clock(time)) },
        ...names.map((name, index) => ({
          label: name,
          stroke: COLORS[index % COLORS.length],
          width: 1.5,
          points: { show: false },
          value: (_, value) => number(value),
        })),
      ],
    }, data, this.place);
  }
}

const megabytes = (byTask) => Object.fromEntries(
  Object.entries(byTask).map(([name, value]) => [name, value === null ? null : value / 1e6]));

const charts = [
  new Chart("throughput-chart", (point) => ({ "steps/s": point.steps_per_second })),
  new Chart("loss-chart", (point) => ({ loss: point.loss })),
  new Chart("memory-chart", (point) => megabytes(point.memory_bytes)),
  new Chart("traffic-chart", (point) => megabytes(point.traffic_bytes_per_second)),
];

function showCharts() {
  const from = points.length ? points[points.length - 1].time - LONGEST : 0;
  points = points.filter((point) => point.time >= from);
  if (points.length) for (const chart of charts) chart.show();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  // Colors of the axes are those of the time when the plot was made.
  for (const chart of charts) chart.names = [];
  showCharts();
});

// ---- Messages -----------------------------------------------------------

function connection(text, className) {
  const badge = find("connection");
  badge.textContent = text;
  badge.className = `badge ${className}`;
}

function show(state) {
  showHead(state);
  showMap(state);
  showWorkers(state);
  showServers(state);
  showEvents(state);
}

const stream = new EventSource("/stream");
stream.onerror = () => connection("tfps dashboard has ended", "lost");
stream.onmessage = (message) => {
  const { kind, data } = JSON.parse(message.data);
  if (kind === "history") {
    points = data;
    showCharts();
  } else if (kind === "unreachable") {
    connection("the job does not answer", "lost");
    find("connection").title = data;
  } else {
    connection("live", "live");
    find("connection").title = "";
    // The job may tell the same state again.
    if (points.at(-1)?.time !== data.point.time) points.push(data.point);
    show(data.state);
    showCharts();
  }
};
