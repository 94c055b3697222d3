'use strict';
// The plots are drawn already: this shows and hides series, changes scales, saves plots and the picture, and opens the page
// of a preset.

const palette = JSON.parse(document.getElementById('palette').textContent);
const boxOf = place => document.querySelector('[data-plot="' + place + '"]');

function show(button, shown) {
  button.setAttribute('aria-pressed', String(shown));
  const box = boxOf(button.closest('[data-legend]').dataset.legend);
  for (const number of button.dataset.shows.split(' ')) {
    for (const part of box.querySelectorAll('[data-series="' + number + '"]')) part.toggleAttribute('hidden', !shown);
  }
}

for (const button of document.querySelectorAll('[data-shows]')) {
  button.addEventListener('click', () => show(button, button.getAttribute('aria-pressed') !== 'true'));
}

for (const button of document.querySelectorAll('[data-all]')) {
  button.addEventListener('click', () => {
    const legend = button.closest('[data-legend]');
    legend.classList.add('is-open');
    for (const other of legend.querySelectorAll('[data-shows]')) show(other, true);
  });
}

for (const button of document.querySelectorAll('[data-scale]')) {
  button.addEventListener('click', () => {
    const linear = boxOf(button.dataset.scale).classList.toggle('is-linear');
    button.setAttribute('aria-pressed', String(linear));
  });
}

const written = svg => new XMLSerializer().serializeToString(svg);

function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement('a');
  link.href = url;
  link.download = 'bywire-' + name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// For papers and READMEs: wide and light, with title and legend inside.
function save(place) {
  const box = boxOf(place);
  const scale = box.classList.contains('is-linear') ? 'linear' : 'usual';
  const svg = box.querySelector('svg.wide.' + scale).cloneNode(true);
  svg.setAttribute('viewBox', svg.dataset.whole);
  svg.setAttribute('height', svg.dataset.whole.split(' ')[3]);
  svg.querySelectorAll('[hidden]').forEach(part => part.remove());
  const text = written(svg).replace(/var\((--[a-z0-9-]+)\)/g, (_, name) => palette[name]);
  download(new Blob([text], { type: 'image/svg+xml' }), place + '.svg');
}

for (const button of document.querySelectorAll('[data-download]')) {
  button.addEventListener('click', () => save(button.dataset.download));
}

// The picture to share: sites that show a picture beside a link take no SVG.
const pictureOf = place => document.querySelector('[data-picture="' + place + '"] svg');

async function asPng(place) {
  const svg = pictureOf(place);
  const image = new Image();
  image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(written(svg));
  await image.decode();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [svg.width.baseVal.value, svg.height.baseVal.value];
  canvas.getContext('2d').drawImage(image, 0, 0);
  return new Promise(done => canvas.toBlob(done, 'image/png'));
}

for (const button of document.querySelectorAll('[data-png]')) {
  button.addEventListener('click', async () => download(await asPng(button.dataset.png), 'report.png'));
}
for (const button of document.querySelectorAll('[data-svg]')) {
  button.addEventListener('click', () =>
    download(new Blob([written(pictureOf(button.dataset.svg))], { type: 'image/svg+xml' }), 'report.svg'));
}

// A table that is wider than the page says so, until it was scrolled.
const tables = new ResizeObserver(entries => {
  for (const { target } of entries) {
    target.classList.toggle('is-cut', target.scrollWidth > target.clientWidth + 1);
  }
});
for (const table of document.querySelectorAll('.scroll')) {
  tables.observe(table);
  table.addEventListener('scroll', () => {
    const left = table.scrollWidth - table.clientWidth - table.scrollLeft;
    table.classList.toggle('is-at-end', left < 8);
  });
}

// With several presets each is a page of its own, named by the address.
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
}

if (pages.length) {
  addEventListener('hashchange', openPage);
  openPage();
}
