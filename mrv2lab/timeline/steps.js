/* Steps through a picture of timelines, in the browser alone: buttons, a slider, a click on the picture.
   What there is to step through is written by `panel.py`; the words of all moments lie in one place,
   one of them visible, so that nothing moves from one to the next. */
({moments, tops, height}) => (picture, words) => {
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
    const scale = picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
    /* Where the picture is wider than the page: */
    paper.scrollLeft = (left + right) / 2 * scale - paper.clientWidth / 2;
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
