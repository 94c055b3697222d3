'use strict';
// Draws the plots whose data the page holds, with legends that a keyboard can reach, and saves each as SVG.

const plots = JSON.parse(document.getElementById('data').textContent);
const dark = matchMedia('(prefers-color-scheme: dark)');
const narrow = matchMedia('(max-width: 40rem)');

// Okabe and Ito's colours, told apart without colour vision, with a lighter row for dark pages.
const COLOURS = {
  light: ['#0072b2', '#d55e00', '#009e73', '#b8558f', '#a87900', '#3a8fc4', '#5b5b5b', '#7a4fb5'],
  dark: ['#56b4e9', '#ff8a3d', '#2fd0a0', '#e79ac4', '#f0c243', '#9cd6ff', '#c9c7c0', '#b79bf0'],
};
const INKS = {
  light: { ink: '#1d1d1b', soft: '#5d5c57', line: '#e3e0d8', limit: '#77756e', historic: '#8b8980', card: '#ffffff' },
  dark: { ink: '#e9e7e1', soft: '#a5a39c', line: '#34363b', limit: '#9b988f', historic: '#8d8b84', card: '#1e2024' },
};
const SYMBOLS = ['circle', 'rect', 'triangle', 'diamond'];
const DASHES = ['solid', [7, 3], [2, 2], [9, 3, 2, 3], [4, 2], [12, 4], [1, 3], [6, 2, 1, 2]];
const HISTORIC_SYMBOLS = ['diamond', 'triangle', 'circle', 'rect', 'roundRect'];

const FORMATS = {
  duration: v => scaled(v, [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]),
  rate: v => scaled(v, [[1e9, 'GB/s'], [1e6, 'MB/s'], [1e3, 'kB/s'], [1, 'B/s']]),
  persecond: v => scaled(v, [[1e6, 'M/s'], [1e3, 'k/s'], [1, '/s']]),
  size: v => v >= 1048576 && v % 1048576 === 0 ? v / 1048576 + ' MiB' : v >= 1024 && v % 1024 === 0 ? v / 1024 + ' KiB' : Math.round(v) + ' B',
  share: v => digits(v * 100) + ' %',
  name: v => String(v),
};

function digits(v) {
  const size = Math.abs(v);
  return size >= 99.95 ? v.toFixed(0) : size >= 9.995 ? v.toFixed(1) : size >= 0.0995 || size === 0 ? v.toFixed(2) : v.toPrecision(2);
}

function scaled(v, units) {
  const [factor, name] = units.find(unit => Math.abs(v) >= unit[0] * 0.9995) || units[units.length - 1];
  return digits(v / factor) + ' ' + name;
}

// An axis label has no more digits than it needs: 1 µs, 10 ns.
function short(format, v) {
  return format(v).replace(/(\.\d*?)0+(?=\s)/, '$1').replace(/\.(?=\s)/, '');
}

const escaped = text => text.replace(/[&<>"']/g, letter => '&#' + letter.charCodeAt(0) + ';');

function look(series, mode) {
  const inks = INKS[mode], colours = COLOURS[mode];
  switch (series.look) {
    case 'limit': return { colour: inks.limit, fill: inks.limit, symbol: 'none', dash: [3, 4], width: 1.5 };
    case 'historic': return { colour: inks.historic, fill: inks.card, symbol: HISTORIC_SYMBOLS[series.slot % 5], dash: null, width: 0 };
    default: {
      const slot = series.slot % colours.length;
      // Four symbols, filled and then hollow.
      const fill = slot < 4 || series.look !== 'measured' ? colours[slot] : inks.card;
      // Where colours come round again, symbol and dash do not.
      const lap = Math.floor(series.slot / colours.length);
      return { colour: colours[slot], fill, symbol: SYMBOLS[(slot + lap) % 4], dash: DASHES[(slot + 3 * lap) % 8], width: 2 };
    }
  }
}

function axis(spec, logarithmic, mode, points, horizontal) {
  const inks = INKS[mode], format = FORMATS[spec.quantity];
  const sizes = spec.quantity === 'size';
  // Whatever stands in the file, the ends of the axis and what lies between them are numbers.
  const values = points.filter(v => v > 0).map(v => Math.min(Math.max(v, 1e-100), 1e100));
  // Labels at every fourth power of two; the axis itself ends at any.
  const base = sizes ? 2 : 10;
  const step = v => Math.log(v) / Math.log(base);
  const from = values.length ? Math.min(...values) : 1, to = values.length ? Math.max(...values) : 10;
  return {
    type: logarithmic ? 'log' : 'value', logBase: sizes ? 16 : base,
    min: logarithmic ? base ** Math.floor(step(from) + 1e-9) : values.length < points.length && points.some(v => v < 0) ? undefined : 0,
    max: logarithmic ? base ** Math.ceil(step(to) - 1e-9) : undefined,
    name: spec.name, nameLocation: horizontal ? 'middle' : 'end', nameGap: horizontal ? 30 : 12,
    nameTextStyle: { color: inks.soft, align: horizontal ? 'center' : 'left' },
    axisLine: { show: horizontal, lineStyle: { color: inks.soft } },
    axisTick: { show: false },
    splitLine: { show: !horizontal, lineStyle: { color: inks.line } },
    minorTick: { show: false },
    axisLabel: { color: inks.soft, hideOverlap: true, formatter: v => short(format, v) },
  };
}

// A mark comes and goes with the curve that it is on, which has its slot.
function visible(plot, state) {
  const hidden = plot.series.filter(item => state.hidden.has(item.name));
  return plot.series.filter(item => !hidden.includes(item) &&
    !(item.look === 'mark' && hidden.some(other => other.look === 'measured' && other.slot === item.slot)));
}

function curves(plot, state, mode) {
  const inks = INKS[mode], series = [];
  const shown = visible(plot, state);
  for (const item of shown) {
    const style = look(item, mode), many = item.points.length > 40;
    if (item.look === 'measured' && item.points.some(point => point.band)) series.push(...band(item, style));
    series.push({
      type: item.look === 'historic' || item.look === 'mark' ? 'scatter' : 'line',
      name: item.name, data: item.points.map(point => ({ value: [point.x, point.y], point })),
      color: style.colour, symbol: item.look === 'mark' ? 'diamond' : style.symbol,
      symbolSize: item.look === 'mark' ? 15 : item.look === 'historic' ? 9 : 7,
      showSymbol: !many && style.symbol !== 'none', showAllSymbol: true,
      itemStyle: item.look === 'mark' ? { opacity: 1, color: style.colour, borderColor: inks.card, borderWidth: 2 } : { opacity: 1, color: style.fill, borderColor: style.colour, borderWidth: 1.5 },
      lineStyle: { width: style.width, type: style.dash || 'solid', color: style.colour },
      z: item.look === 'mark' ? 5 : item.look === 'measured' ? 4 : 3, emphasis: { focus: 'none' },
    });
  }
  const points = shown.flatMap(item => item.points);
  const logarithmic = plot.y.logarithmic && !state.linear;
  return {
    xAxis: axis(plot.x, plot.x.logarithmic, mode, points.map(point => point.x), true),
    yAxis: axis(plot.y, logarithmic, mode, points.flatMap(point => [point.y, ...(point.band || [])]), false),
    series,
  };
}

// The band is an invisible line at its lower edge with its height stacked on top and filled.
function band(item, style) {
  const points = item.points.filter(point => point.band);
  const part = (data, area) => ({
    type: 'line', name: 'band of ' + item.name, silent: true, symbol: 'none', data, stack: 'band of ' + item.name, stackStrategy: 'all',
    lineStyle: { opacity: 0 }, areaStyle: area ? { color: style.colour, opacity: 0.16 } : undefined,
    tooltip: { show: false }, z: 2,
  });
  return [
    part(points.map(point => [point.x, point.band[0]]), false),
    part(points.map(point => [point.x, Math.max(point.band[1] - point.band[0], 0)]), true),
  ];
}

const LABEL_LINE = 15;

const labelWidth = state => narrow.matches && !state.saving ? 104 : 190;

// Each row is as high as the longest name, broken into lines, needs.
function rowHeight(plot, state) {
  const lines = Math.max(...plot.categories.map(name => Math.ceil(7 * name.length / labelWidth(state))));
  return Math.max(46, LABEL_LINE * (lines + 1));
}

// A bar starts at nought, which a logarithmic axis has not: there the value is a dot.
function bars(plot, state, mode) {
  const inks = INKS[mode], dots = plot.y.logarithmic;
  const shown = visible(plot, state);
  return {
    xAxis: { ...axis(plot.y, dots, mode, shown.flatMap(item => item.points.map(point => point.y)), true), splitLine: { show: true, lineStyle: { color: inks.line } }, axisLine: { show: false } },
    yAxis: {
      type: 'category', inverse: true, data: plot.categories, axisTick: { show: false },
      axisLine: { lineStyle: { color: inks.soft } }, splitLine: { show: dots, lineStyle: { color: inks.line } },
      axisLabel: { color: inks.ink, width: labelWidth(state), overflow: 'break', lineHeight: LABEL_LINE, interval: 0 },
    },
    series: shown.map(item => dots ? ({
      type: 'scatter', name: item.name, symbol: dot(item), symbolSize: 12, itemStyle: { opacity: 1 },
      color: look(item, mode).colour, data: item.points.map(point => ({ value: [point.y, point.x], point })),
    }) : ({
      type: 'bar', name: item.name, stack: 'cpu', barMaxWidth: 26, color: look(item, mode).colour,
      // Parts differ in brightness and in their outline too, not in hue alone.
      itemStyle: { opacity: item.look === 'part' && item.slot % 2 ? 0.45 : 1, borderColor: inks.card, borderWidth: 1, decal: decal(item, mode) },
      data: plot.categories.map((_, index) => {
        const point = item.points.find(point => point.x === index);
        return point ? { value: point.y, point } : null;
      }),
    })),
  };
}

// Many parts need more than colours: from the fifth on they carry a pattern, drawn into the bar.
function decal(item, mode) {
  if (item.look !== 'part' || item.slot < 4) return undefined;
  const ink = mode === 'dark' ? 'rgba(0,0,0,0.45)' : 'rgba(255,255,255,0.55)';
  const pattern = [[0, 4], [Math.PI / 4, 5], [-Math.PI / 4, 5], [Math.PI / 2, 4]][item.slot % 4];
  return { color: ink, dashArrayX: [1, 0], dashArrayY: [2, pattern[1] - 1 + Math.floor(item.slot / 8) * 3], rotation: pattern[0] };
}

// Rows of dots are told apart by their shape too.
function dot(item) {
  return item.look === 'historic' ? 'diamond' : SYMBOLS[item.slot % 4];
}

function tip(plot) {
  return params => {
    const point = params.data && params.data.point;
    if (!point) return '';
    const y = FORMATS[plot.y.quantity];
    const where = plot.kind === 'bars' ? plot.categories[point.x] : FORMATS[plot.x.quantity](point.x);
    const lines = ['<b>' + escaped(params.seriesName) + '</b>', escaped(where) + ': ' + y(point.y)];
    if (point.band) lines.push(y(point.band[0]) + ' – ' + y(point.band[1]));
    if (point.note) lines.push(escaped(point.note));
    return lines.join('<br>');
  };
}

function option(plot, state, mode) {
  const inks = INKS[mode], wide = !narrow.matches || state.saving;
  return {
    animation: false,
    // Without quotation marks, which would end the attribute in a saved SVG.
    textStyle: { fontFamily: 'system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif' },
    aria: { enabled: false },
    grid: { left: 8, right: wide ? 22 : 14, top: state.saving ? 62 + 24 * state.legendRows : plot.kind === 'bars' ? 6 : 34, bottom: 34, containLabel: true },
    tooltip: {
      trigger: 'item', confine: true, formatter: tip(plot), backgroundColor: inks.card, borderColor: inks.line,
      textStyle: { color: inks.ink, fontSize: 13 }, extraCssText: 'max-width:20rem;white-space:normal',
    },
    ...(plot.kind === 'bars' ? bars(plot, state, mode) : curves(plot, state, mode)),
  };
}

// A legend of real buttons: each shows the line and the symbol, and hides or shows its series.
function legend(plot, state, redraw) {
  const box = document.querySelector('[data-legend="' + plot.id + '"]');
  box.replaceChildren(...plot.series.filter(item => item.look !== 'mark').map(item => {
    const button = document.createElement('button');
    button.type = 'button';
    button.setAttribute('aria-pressed', String(!state.hidden.has(item.name)));
    button.append(sample(plot, item, dark.matches ? 'dark' : 'light'), item.name);
    button.addEventListener('click', () => {
      state.hidden[state.hidden.has(item.name) ? 'delete' : 'add'](item.name);
      button.setAttribute('aria-pressed', String(!state.hidden.has(item.name)));
      redraw();
    });
    return button;
  }));
}

function sample(plot, item, mode) {
  const style = look(item, mode), rows = plot.kind === 'bars', bar = rows && !plot.y.logarithmic;
  const make = (name, attributes) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    return node;
  };
  const svg = make('svg', { width: 26, height: 12, viewBox: '0 0 26 12', 'aria-hidden': 'true' });
  if (bar) {
    svg.append(make('rect', { x: 4, y: 1, width: 18, height: 10, fill: style.colour, opacity: item.look === 'part' && item.slot % 2 ? 0.45 : 1 }));
    if (item.look === 'part' && item.slot >= 4) {
      const ink = mode === 'dark' ? 'rgba(0,0,0,0.45)' : 'rgba(255,255,255,0.55)';
      const turned = make('g', { transform: 'rotate(' + [0, 45, -45, 90][item.slot % 4] + ' 13 6)', stroke: ink, 'stroke-width': 1.6 });
      for (let y = -6; y <= 18; y += 4) turned.append(make('line', { x1: -2, x2: 28, y1: y, y2: y }));
      svg.append(turned);
    }
    return svg;
  }
  if (style.width && item.look !== 'mark' && !rows) {
    const dash = Array.isArray(style.dash) ? style.dash.join(' ') : 'none';
    svg.append(make('line', { x1: 0, y1: 6, x2: 26, y2: 6, stroke: style.colour, 'stroke-width': style.width, 'stroke-dasharray': dash }));
  }
  const paint = { fill: style.fill, stroke: style.colour, 'stroke-width': 1.4 };
  const shape = rows ? dot(item) : style.symbol;
  if (shape === 'circle') svg.append(make('circle', { cx: 13, cy: 6, r: 3.6, ...paint }));
  if (shape === 'roundRect') svg.append(make('rect', { x: 9.6, y: 2.6, width: 6.8, height: 6.8, rx: 2.2, ...paint }));
  if (shape === 'rect') svg.append(make('rect', { x: 9.6, y: 2.6, width: 6.8, height: 6.8, ...paint }));
  if (shape === 'triangle') svg.append(make('path', { d: 'M13 1.8 17.4 9.8H8.6Z', ...paint }));
  if (shape === 'diamond') svg.append(make('path', { d: 'M13 1.2 17.6 6 13 10.8 8.4 6Z', ...paint }));
  return svg;
}

// For papers and READMEs: light, of fixed size, with title and legend inside.
function save(plot, state) {
  const shown = visible(plot, state).filter(item => item.look !== 'mark');
  const legendRows = Math.ceil(shown.reduce((width, item) => width + 52 + 7 * item.name.length, 0) / 920);
  const saving = { ...state, saving: true, legendRows };
  const height = plot.kind === 'bars' ? 160 + 44 * plot.categories.length : 520 + 24 * legendRows;
  const chart = echarts.init(null, null, { renderer: 'svg', ssr: true, width: 960, height });
  const icon = item => plot.kind === 'bars' ? 'roundRect' : undefined;
  chart.setOption({
    ...option(plot, saving, 'light'),
    backgroundColor: '#ffffff',
    title: { text: plot.title, left: 8, top: 4, textStyle: { fontSize: 17, fontWeight: 500, color: INKS.light.ink } },
    legend: { top: 32, left: 4, itemGap: 14, data: shown.map(item => ({ name: item.name, icon: icon(item) })), textStyle: { color: INKS.light.ink } },
  });
  const url = URL.createObjectURL(new Blob([chart.renderToSVGString()], { type: 'image/svg+xml' }));
  chart.dispose();
  const link = document.createElement('a');
  link.href = url;
  link.download = 'bywire-' + plot.id + '.svg';
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function start(plot) {
  const box = document.querySelector('[data-plot="' + plot.id + '"]');
  const state = { hidden: new Set(), linear: false, saving: false };
  const fit = () => { if (plot.kind === 'bars') box.style.height = 90 + rowHeight(plot, state) * plot.categories.length + 'px'; };
  fit();
  const chart = echarts.init(box, null, { renderer: 'svg' });
  const redraw = () => chart.setOption(option(plot, state, dark.matches ? 'dark' : 'light'), true);
  const repaint = () => { legend(plot, state, redraw); redraw(); };
  repaint();
  new ResizeObserver(() => chart.resize()).observe(box);
  dark.addEventListener('change', repaint);
  narrow.addEventListener('change', () => { fit(); chart.resize(); redraw(); });
  const scale = document.querySelector('[data-scale="' + plot.id + '"]');
  if (scale) scale.addEventListener('click', () => {
    state.linear = !state.linear;
    scale.setAttribute('aria-pressed', String(state.linear));
    redraw();
  });
  document.querySelector('[data-download="' + plot.id + '"]').addEventListener('click', () => save(plot, state));
}

// With several presets each is a page of its own, named by the address; a plot is drawn once its page is open.
const pages = [...document.querySelectorAll('.page')];

function openPage() {
  const named = location.hash ? document.getElementById(location.hash.slice(1)) : null;
  const page = pages.find(page => named && page.contains(named)) || pages[0];
  for (const other of pages) other.hidden = other !== page;
  for (const link of document.querySelectorAll('.pages a')) {
    if (link.hash.slice(1) === page.id) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (named && named !== page) named.scrollIntoView();
  draw(plot => page.contains(boxOf(plot)));
}

const boxOf = plot => document.querySelector('[data-plot="' + plot.id + '"]');
const drawn = new Set();

function draw(wanted) {
  for (const plot of plots) {
    if (drawn.has(plot.id) || !wanted(plot)) continue;
    drawn.add(plot.id);
    start(plot);
  }
}

if (pages.length) {
  addEventListener('hashchange', openPage);
  openPage();
} else {
  draw(() => true);
}
