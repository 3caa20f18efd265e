/* Steps through a picture of timelines, in the browser alone: buttons, a slider, a click on the picture.
   What there is to step through is written by `panel.py`; the words of all moments lie in one place,
   one of them visible, so that nothing moves from one to the next. */
({moments, tops, height, margin}) => (picture, words) => {
  const told = ({name, happens, ...rest}) => `<div><b>${name}</b><br>${happens}<small>` +
    Object.entries(rest).map(([title, text]) => `<br>${title}: ${text}`).join('') + '</small></div>';
  const inWords = ([, , phase, runs]) =>
    `<div><b>${phase}</b><div class="beside">${runs.map(told).join('')}</div></div>`;
  const last = moments.length - 1;
  const panel = document.createElement('div');
  panel.className = 'mrv2lab-timeline';
  panel.innerHTML = `<div class="controls"><button>◀ back</button><input type="range" min="0" max="${last}"
    aria-label="moment"><button>forward ▶</button><button>play</button></div>
    <div class="stack">${moments.map(inWords).join('')}</div>`;
  words.replaceWith(panel);
  const [back, forward, play] = panel.querySelectorAll('button');
  const slider = panel.querySelector('input'), stack = [...panel.querySelector('.stack').children];
  const paper = picture.parentElement;
  const cursors = tops.map(y => {
    const cursor = document.createElementNS(picture.namespaceURI, 'rect');
    const looks = {y, height, fill: 'gray', 'fill-opacity': 0.2, stroke: 'dimgray', 'stroke-width': 1.6};
    Object.entries(looks).forEach(([name, value]) => cursor.setAttribute(name, value));
    return picture.appendChild(cursor);
  });
  /* Names of runs and lanes stay in view when the picture scrolls, on a sheet over what is behind them. */
  const scale = () => picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
  const corner = picture.getBoundingClientRect(), below = tops.at(-1) + height;
  const names = [...picture.querySelectorAll('text')].filter(text => {
    const {left, bottom} = text.getBoundingClientRect();
    return left - corner.left < margin / 2 * scale() && bottom - corner.top <= below * scale();
  });
  /* What names and marks stand for goes below the picture: else it would scroll away with it. All are
     measured before one is moved, for each that is may move the page. */
  const placed = (scale() ? [...picture.querySelectorAll('text')] : []).map(
    text => [text, text.getBoundingClientRect().top - corner.top]);
  const key = panel.insertBefore(document.createElement('small'), panel.firstChild);
  let line = 0;
  for (const [text, top] of placed.filter(([, top]) => top >= below * scale())) {
    key.append(Math.abs(top - line) < 5 ? ' · ' : document.createElement('br'), text.textContent);
    line = top;
    text.remove();
  }
  picture.removeAttribute('height');
  picture.viewBox.baseVal.height = below + 4;
  const still = picture.appendChild(document.createElementNS(picture.namespaceURI, 'g'));
  const sheets = tops.map(y => {
    const sheet = document.createElementNS(picture.namespaceURI, 'rect');
    Object.entries({y, height, fill: 'white'}).forEach(([name, value]) => sheet.setAttribute(name, value));
    return still.appendChild(sheet);
  });
  still.append(...names);
  paper.onscroll = () => {
    still.setAttribute('transform', `translate(${paper.scrollLeft / scale()} 0)`);
    sheets.forEach(sheet => sheet.setAttribute('width', paper.scrollLeft && margin - 4));
  };
  let at = 0, playing = null;

  function show(moment) {
    at = Math.max(0, Math.min(last, moment));
    const [left, right, phase] = moments[at];
    cursors.forEach(cursor => { cursor.setAttribute('x', left); cursor.setAttribute('width', right - left); });
    stack.forEach((each, i) => { each.style.visibility = i === at ? 'visible' : 'hidden'; });
    slider.value = at;
    slider.setAttribute('aria-valuetext', `${at + 1} of ${last + 1}, ${phase}`);
    back.disabled = at === 0;
    forward.disabled = at === last;
    paper.scrollLeft = ((left + right - margin) * scale() - paper.clientWidth) / 2; /* beside the names */
  }
  function stop() { clearInterval(playing); playing = null; play.textContent = 'play'; }
  function go(to) { stop(); show(to); }
  back.onclick = () => go(at - 1);
  forward.onclick = () => go(at + 1);
  slider.oninput = () => go(Number(slider.value));
  slider.onkeydown = event => event.stopPropagation(); /* else JupyterLab moves to another cell */
  play.onclick = () => {
    if (playing) { stop(); return; }
    if (at === last) show(0);
    play.textContent = 'pause';
    playing = setInterval(() => { show(at + 1); if (at === last) stop(); }, 1500);
  };
  picture.onclick = event => {
    const {left, width} = picture.getBoundingClientRect();
    const x = (event.clientX - left) / width * picture.viewBox.baseVal.width;
    const hit = moments.findIndex(([, right]) => x < right);
    if (x >= moments[0][0]) go(hit < 0 ? last : hit);
  };
  show(0);
}
