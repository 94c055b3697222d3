'use strict';
// The plots are drawn already: this hides series, changes scales, saves plots and opens the page of a preset.

const palette = JSON.parse(document.getElementById('palette').textContent);
const boxOf = place => document.querySelector('[data-plot="' + place + '"]');

for (const legend of document.querySelectorAll('[data-legend]')) {
  for (const button of legend.querySelectorAll('button')) {
    button.addEventListener('click', () => {
      const shown = button.getAttribute('aria-pressed') !== 'true';
      button.setAttribute('aria-pressed', String(shown));
      for (const number of button.dataset.shows.split(' ')) {
        for (const part of boxOf(legend.dataset.legend).querySelectorAll('[data-series="' + number + '"]')) {
          part.toggleAttribute('hidden', !shown);
        }
      }
    });
  }
}

for (const button of document.querySelectorAll('[data-scale]')) {
  button.addEventListener('click', () => {
    const linear = boxOf(button.dataset.scale).classList.toggle('is-linear');
    button.setAttribute('aria-pressed', String(linear));
  });
}

// For papers and READMEs: wide and light, with title and legend inside.
function save(place) {
  const box = boxOf(place);
  const scale = box.classList.contains('is-linear') ? 'linear' : 'usual';
  const svg = box.querySelector('svg.wide.' + scale).cloneNode(true);
  svg.setAttribute('viewBox', svg.dataset.whole);
  svg.setAttribute('height', svg.dataset.whole.split(' ')[3]);
  svg.querySelectorAll('[hidden]').forEach(part => part.remove());
  const text = new XMLSerializer().serializeToString(svg).replace(/var\((--[a-z0-9-]+)\)/g, (_, name) => palette[name]);
  const url = URL.createObjectURL(new Blob([text], { type: 'image/svg+xml' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = 'bywire-' + place + '.svg';
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

for (const button of document.querySelectorAll('[data-download]')) {
  button.addEventListener('click', () => save(button.dataset.download));
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
