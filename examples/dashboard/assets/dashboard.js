// Draws what /events tells, and sends what the sliders say. All numbers come from the server; the page computes none.

const MINUTE = 60; // seconds that a chart shows
const TICKS = 240; // of a quarter of a second

// A chart: how its values print, and the least end of its y axis. A series: the name of its number in a tick, its label, its colour in
// dashboard.css, and a dash or a filled area.
const REQUESTS = {
  title: "Requests a second",
  format: value => `${short(value)}/s`,
  least: 4,
  series: [
    { of: "granted", label: "granted", colour: "--granted", fill: true },
    { of: "denied", label: "denied", colour: "--denied" },
  ],
};
const PLACES = {
  title: "In flight and waiting",
  format: value => short(value),
  least: 4,
  series: [
    { of: "in_flight", label: "in flight", colour: "--granted", fill: true },
    { of: "queued", label: "queue", colour: "--queue" },
    { of: "places", label: "limit", colour: "--limit", dash: [5, 4] },
  ],
};
const TOKENS = {
  title: "Tokens left and waiting",
  format: value => short(value),
  least: 4,
  series: [
    { of: "tokens", label: "tokens", colour: "--granted", fill: true },
    { of: "queued", label: "queue", colour: "--queue" },
  ],
};
const WAITS = {
  title: "Wait for a permit",
  format: value => duration(value),
  least: 10,
  series: [
    { of: "median", label: "median", colour: "--granted", fill: true },
    { of: "late", label: "95 %", colour: "--late" },
  ],
};

const TENANT_COLOURS = ["--denied", "--queue", "--granted"];
// A chart with a series for each tenant.
const byTenant = (tenants, of, title, format) => ({
  title,
  format,
  least: 4,
  series: tenants.map((tenant, nth) => ({ of: `${tenant}_${of}`, label: tenant, colour: TENANT_COLOURS[nth] })),
});
function chartsOf({ name, tenants }) {
  if (tenants.length === 1) return [REQUESTS, name === "api" ? TOKENS : PLACES, WAITS];
  return [
    byTenant(tenants, "granted", "Granted a second", REQUESTS.format),
    byTenant(tenants, "in_flight", "Places in use", PLACES.format),
    byTenant(tenants, "queued", "Waiting", PLACES.format),
  ];
}

const short = value => String(value < 10 ? +value.toFixed(1) : Math.round(value));
const duration = ms => (ms < 1000 ? `${short(ms)} ms` : `${+(ms / 1000).toFixed(2)} s`);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clone = id => document.getElementById(id).content.firstElementChild.cloneNode(true);

// The end of the y axis, of which few are possible, so that it seldom moves.
function end(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 6, 8, 10].map(step => step * power).find(end => end >= most);
}

class Chart {
  constructor(kind, parent) {
    this.kind = kind;
    const figure = clone("chart");
    figure.querySelector("h3").textContent = kind.title;
    this.when = figure.querySelector(".when");
    this.plot = figure.querySelector(".plot");
    this.plot.ariaLabel = `${kind.title} over the last minute: ${kind.series.map(series => series.label).join(", ")}`;
    const legend = figure.querySelector(".legend");
    this.values = kind.series.map(series => {
      const item = document.createElement("li");
      const key = document.createElement("i");
      key.style.borderColor = `var(${series.colour})`;
      key.className = series.dash ? "dashed" : "";
      const value = document.createElement("b");
      value.dataset.of = series.of;
      item.append(key, `${series.label} `, value);
      legend.append(item);
      return value;
    });
    parent.append(figure);
    this.u = new uPlot(this.options(), [[], ...kind.series.map(() => [])], this.plot);
    new ResizeObserver(() => this.u.setSize(this.size())).observe(this.plot);
  }

  size() {
    return { width: this.plot.clientWidth, height: this.plot.clientHeight };
  }

  options() {
    const axis = {
      stroke: () => colour("--soft"),
      font: "12px system-ui, sans-serif",
      grid: { stroke: () => colour("--grid"), width: 1 },
      ticks: { show: false },
    };
    return {
      ...this.size(),
      legend: { show: false },
      cursor: { y: false, drag: { x: false }, sync: { key: "time" }, points: { size: 6 } },
      scales: { x: { time: false, range: [-MINUTE, 0] }, y: { range: (_, __, most) => [0, end(Math.max(most * 1.03, this.kind.least))] } },
      axes: [
        { ...axis, size: 26, gap: 6, splits: [-60, -45, -30, -15, 0], values: (_, ats) => ats.map(at => (at ? `−${-at} s` : "now")) },
        { ...axis, size: 52, gap: 6, splits: (_, __, ___, most) => [0, most / 2, most], values: (_, values) => values.map(value => this.kind.format(value)) },
      ],
      padding: [6, 16, 0, 0],
      series: [
        {},
        ...this.kind.series.map(series => ({
          stroke: () => colour(series.colour),
          fill: series.fill ? () => `${colour(series.colour)}22` : undefined,
          dash: series.dash,
          width: series.dash ? 1.5 : 2,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [() => this.showValues()] },
    };
  }

  draw(numbers) {
    const last = numbers.at(-1).at;
    const columns = this.kind.series.map(series => numbers.map(tick => tick.panel[series.of]));
    this.u.setData([numbers.map(tick => tick.at - last), ...columns]);
    this.showValues();
  }

  // Those under the cursor, or else the latest.
  showValues() {
    const [times, ...columns] = this.u.data;
    const hovered = this.u.cursor.idx != null && this.u.cursor.left >= 0;
    const at = hovered ? this.u.cursor.idx : times.length - 1;
    this.when.textContent = hovered && times[at] < 0 ? `${(-times[at]).toFixed(1)} s ago` : "";
    columns.forEach((column, nth) => {
      const value = column[at];
      this.values[nth].textContent = value == null ? "–" : this.kind.format(value);
    });
  }
}

// One number of a limiter: a slider and a field, or a switch between 0 and 1. They show the server's value unless they were just
// changed here.
class Knob {
  constructor(panel, about, parent) {
    this.panel = panel;
    this.about = about;
    this.touched = -Infinity; // when it was changed here
    this.typing = false; // into the field
    const knob = clone("knob");
    [this.field, this.slider] = knob.querySelectorAll("input");
    knob.querySelector("label").htmlFor = this.slider.id = `${panel.about.name}-${about.name}`;
    this.field.id = `${this.slider.id}-field`;
    knob.querySelector(".label").textContent = about.label;
    knob.querySelector(".unit").textContent = about.unit;
    this.field.ariaLabel = `${about.label}, ${about.unit}, as a number`;
    for (const input of [this.field, this.slider]) {
      input.min = about.min;
      input.max = about.max;
      input.step = 1;
    }
    this.isSwitch = about.max === 1;
    if (this.isSwitch) {
      this.slider.type = "checkbox";
      this.field.remove();
    }
    this.slider.addEventListener("input", () => this.turn(this.isSwitch ? +this.slider.checked : this.slider.valueAsNumber, this.field));
    this.field.addEventListener("input", () => (this.typing = true));
    this.field.addEventListener("blur", () => (this.typing = false));
    this.field.addEventListener("change", () => this.turn(this.field.valueAsNumber, this.slider));
    parent.append(knob);
  }

  turn(value, other) {
    this.touched = performance.now();
    this.typing = false;
    if (!Number.isNaN(value)) other.value = value;
    this.panel.send(this.about.name, Number.isNaN(value) ? this.field.value : value);
  }

  show(value) {
    if (performance.now() - this.touched < 1000) return;
    if (this.isSwitch) this.slider.checked = value === 1;
    else this.slider.value = value;
    if (!this.typing) this.field.value = value;
  }
}

class Panel {
  constructor(about) {
    this.about = about;
    this.wanted = {};
    const section = clone("panel");
    section.id = about.name;
    section.querySelector("h2").textContent = about.title;
    section.querySelector(".text").textContent = about.text;
    this.policy = section.querySelector(".policy");
    this.refusal = section.querySelector(".refusal");
    this.leaks = section.querySelector(".leaks ol");
    if (about.leaks) {
      section.querySelector(".leaks").hidden = false;
      const button = section.querySelector("button");
      button.addEventListener("click", () => this.leak(button));
    }
    document.getElementById("panels").append(section);
    this.knobs = about.knobs.map(knob => new Knob(this, knob, section.querySelector(".knobs")));
    this.charts = chartsOf(about).map(kind => new Chart(kind, section.querySelector(".charts")));
  }

  show(numbers, state) {
    for (const chart of this.charts) chart.draw(numbers.map(tick => ({ at: tick.at, panel: tick.panels[this.about.name] })));
    this.policy.textContent = state.policy;
    for (const knob of this.knobs) knob.show(state.settings[knob.about.name]);
    this.leaks.replaceChildren(...(state.leaks ?? []).map(leakItem).reverse());
  }

  // One request at a time; what changes meanwhile goes with the next.
  async send(name, value) {
    this.wanted[name] = value;
    if (this.sending) return;
    this.sending = true;
    while (Object.keys(this.wanted).length) {
      const body = JSON.stringify(this.wanted);
      this.wanted = {};
      await this.ask("", { method: "PUT", headers: { "content-type": "application/json" }, body });
    }
    this.sending = false;
  }

  async leak(button) {
    button.disabled = true;
    await this.ask("/leaks", { method: "POST" });
    button.disabled = false;
  }

  async ask(path, options) {
    let refusal = "";
    try {
      const answer = await fetch(`/panels/${this.about.name}${path}`, options);
      if (!answer.ok) refusal = await answer.text();
    } catch {
      refusal = "The server does not answer.";
    }
    this.refusal.textContent = refusal;
    this.refusal.hidden = !refusal;
  }
}

function leakItem(leak) {
  const item = document.createElement("li");
  item.className = leak.held == null ? "open" : "reclaimed";
  const then = leak.held == null ? `reclaimed in ${leak.left.toFixed(1)}\u00a0s` : `reclaimed after its TTL of ${leak.held.toFixed(1)}\u00a0s`;
  item.textContent = `Leaked #${leak.permit}: ${then}`;
  return item;
}

let panels = [];
let numbers = []; // the ticks of the last minute
let events = null;

function say(text, live) {
  const connection = document.getElementById("connection");
  if (connection.textContent !== text) connection.textContent = text;
  connection.classList.toggle("live", live);
}

function show(tick) {
  for (const panel of panels) panel.show(numbers, tick.panels[panel.about.name]);
  document.documentElement.dataset.at = tick.numbers.at;
  say(`live, ${tick.pages} ${tick.pages === 1 ? "page" : "pages"}`, true);
}

function connect() {
  events = new EventSource("/events");
  events.addEventListener("start", event => {
    const start = JSON.parse(event.data);
    if (!panels.length) {
      document.getElementById("panels").replaceChildren();
      panels = start.panels.map(about => new Panel(about));
    }
    numbers = start.history;
    show(start.tick);
  });
  events.addEventListener("tick", event => {
    const tick = JSON.parse(event.data);
    numbers.push(tick.numbers);
    if (numbers.length > TICKS) numbers.shift();
    show(tick);
  });
  events.addEventListener("error", () => say("not connected, trying again…", false));
}

// A page that is not seen is not sent anything. (Browsers also open few connections to a server, over all its pages.)
document.addEventListener("visibilitychange", () => {
  if (document.hidden) events.close();
  else if (events.readyState === EventSource.CLOSED) connect();
});
connect();
