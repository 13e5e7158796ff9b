// SPDX-License-Identifier: BSD-3-Clause
/** The page of all nodes (docs/hub.md): draws what the service sends, and asks it to act. */

/** All that this page says; reasons and events come in words. */
const TEXT = {
  views: { gpus: 'GPUs', users: 'Users', history: 'History' },
  link: {
    starting: 'connecting',
    good: 'live',
    bad: 'connection lost; what you see may be old',
    over: 'you may no longer see this: load the page again'
  },
  summary: (nodes, away, gpus, notebooks, waiting) =>
    [
      count(nodes, 'node') + (away ? ` (${away} away)` : ''),
      count(gpus, 'GPU'),
      count(notebooks, 'notebook'),
      waiting === 1 ? '1 waits' : waiting ? `${waiting} wait` : 'nobody waits'
    ].join(' · '),
  filter: 'Filter by notebook, user or node',
  noNodes:
    'No node is known. Tell the service of some: c.GpuShareHub.nodes, or discover.',
  noNotebooks: 'No notebook uses these GPUs.',
  noMatch: 'Nothing here has that in its name.',
  noGpus: 'The scheduler sees no GPU; run there: gpushare doctor',
  noUsers: 'No user has a notebook on these GPUs.',
  away: (since, why) => `Away since ${since}${why ? `: ${why}` : ''}`,
  awayNever: why => `Has not answered so far${why ? `: ${why}` : ''}`,
  message: text => `To all: ${text}`,
  facts: node =>
    [
      node.simulated ? 'simulated' : '',
      node.uptime == null ? '' : `up ${duration(node.uptime)}`,
      node.settings ? `policy ${node.settings.policy}` : ''
    ]
      .filter(Boolean)
      .join(' · '),
  gpu: gpu => `${gpu.index} · ${gpu.name}`,
  used: (used, total) => `${part(used, total)} of ${size(total)} in use`,
  busy: value => (value == null ? '' : `${value} % busy`),
  draining: 'draining',
  drain: 'Drain…',
  undrain: 'Use again',
  hostTitle: 'Host memory',
  host: host =>
    host.swapped
      ? `${size(host.swapped)} in host memory, of ${size(host.budget)} at most`
      : `nothing in host memory, of ${size(host.budget)} at most`,
  kinds: {
    resident: 'notebooks',
    pinned: 'cannot move',
    contexts: 'CUDA contexts',
    foreign: 'other programs',
    ghosts: 'being freed',
    free: 'free'
  },
  notebooks: node => `Notebooks on ${node}`,
  columns: {
    name: 'Notebook',
    state: 'State',
    why: 'Why',
    gpus: 'GPU',
    memory: 'Memory',
    ran: 'GPU time',
    waited: 'Waited',
    act: 'Actions'
  },
  states: {
    running: 'running',
    yielding: 'yielding',
    moving: 'moving in',
    waking: 'waking',
    waiting: 'waiting',
    held: 'idle lease',
    idle: 'idle',
    hibernated: 'hibernated'
  },
  place: position => (position == null ? '' : `, ${ordinal(position)}`),
  swapped: bytes => `${size(bytes)} in host memory`,
  noMemory: 'none',
  times: number => `${number}×`,
  someone: 'another user',
  you: 'you',
  isHeld: 'on hold by an administrator',
  userColumns: {
    name: 'User',
    notebooks: 'Notebooks',
    share: 'Share now',
    ran: 'GPU time',
    memory: 'On GPUs',
    swapped: 'In host memory',
    waited: 'Waited',
    quota: 'Entitled to'
  },
  users: 'Users of all nodes',
  waiting: number => (number === 1 ? '1 waits' : `${number} wait`),
  actions: 'Who did what',
  events: 'What happened',
  nothing: 'Nothing so far.',
  cancel: 'Cancel',
  act: {
    open: name => `Act on ${name}`,
    title: (name, user) => `${name}, of ${user}`,
    release: {
      label: 'End its turn',
      hint: 'Others go first. Its cell goes on when its next turn comes; its memory moves only if others need the room.',
      done: name => `The turn of ${name} ends.`
    },
    evict: {
      label: 'Move it out',
      hint: 'Ends its turn, and moves all its memory to the host. Its cell goes on, and its memory comes back, with its next turn.',
      done: name => `${name} is being moved out.`
    },
    hold: {
      label: 'Put it on hold',
      hint: 'Ends its turn. It gets no other until an administrator takes it off hold; its user cannot.',
      done: name => `${name} is on hold.`
    },
    unhold: {
      label: 'Take it off hold',
      hint: 'It waits for its turn again, as others do.',
      done: name => `${name} is no longer on hold.`
    }
  },
  drainTitle: (gpu, node) => `Drain GPU ${gpu.index} of ${node}?`,
  drainHint: (notebooks, waiting) =>
    'No notebook gets a turn there any more. Those that run lose theirs when their quantum is over, ' +
    'and their memory moves to the host; their cells wait until the GPU is used again. ' +
    (notebooks
      ? `${count(notebooks, 'notebook')} ${notebooks === 1 ? 'has' : 'have'} memory there now` +
        (waiting ? `; ${waiting === 1 ? '1 waits' : `${waiting} wait`}.` : '.')
      : 'No notebook has memory there now.'),
  drainDo: 'Drain',
  drained: (gpu, node) => `GPU ${gpu.index} of ${node} is draining.`,
  undrained: (gpu, node) => `GPU ${gpu.index} of ${node} is in use again.`,
  maintenance: 'Message to all…',
  maintenanceTitle: node => `A message to all who use ${node}`,
  maintenanceLabel: 'It is shown in their notebooks until you end it.',
  maintenanceDo: 'Show it',
  maintenanceEnd: 'End it',
  maintained: 'The message is shown.',
  unmaintained: 'The message has ended.',
  failed: why => `Not done: ${why}`,
  noAnswer: 'the service does not answer'
};

const SPACE = '\u00a0';
const SECOND = 1000;
/** A stream that says nothing for so long is dead; the service says something every 15 s. */
const SILENCE = 40 * SECOND;
/** After so long in a tab that nobody sees, the page hears no more. */
const HIDDEN = 30 * SECOND;
/** So many samples of a GPU's utilisation are drawn. */
const SAMPLES = 60;
/** The page is not loaded again by itself so soon after it was. */
const AGAIN = 60 * SECOND;
/** How long it is said what was done. */
const SAY = 6 * SECOND;

const { prefix } = document.body.dataset;
const main = document.getElementById('main');

/** What the service said: the viewer, and the nodes by their names in the page's order. */
const state = { viewer: {}, nodes: new Map(), ready: false };
const samples = new Map();
let filter = '';

/** What says that it is this page that asks; another tab that logged in again has another one for both. */
function xsrf() {
  const [, found] = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie) ?? [];
  return found ?? document.body.dataset.xsrf;
}

// --- Words ---------------------------------------------------------------------------------------

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? '' : 's'}`;
}

function digits(value) {
  return String(
    Number(value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0))
  );
}

function unit(bytes) {
  const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let power = 0;
  while (power < names.length - 1 && bytes / 1024 ** power >= 999.5) {
    power++;
  }
  return [1024 ** power, names[power]];
}

function size(bytes) {
  const [one, name] = unit(bytes);
  return digits(bytes / one) + SPACE + name;
}

/** The first number of "x of y", in y's unit. */
function part(bytes, whole) {
  const [one] = unit(whole);
  return digits(bytes / one);
}

function duration(seconds) {
  const value = Math.max(0, seconds);
  const whole = Math.round(value);
  const [minutes, hours] = [Math.floor(whole / 60), Math.floor(whole / 3600)];
  if (value < 0.95) {
    return value.toFixed(1) + SPACE + 's';
  }
  if (whole < 60) {
    return whole + SPACE + 's';
  }
  if (minutes < 60) {
    return minutes + SPACE + 'min';
  }
  const rest = minutes % 60 ? `${SPACE}${minutes % 60}${SPACE}min` : '';
  return hours < 24
    ? `${hours}${SPACE}h${rest}`
    : `${Math.floor(hours / 24)}${SPACE}d`;
}

/** A duration, or nothing where there was next to none. */
function some(seconds) {
  return seconds >= 0.05 ? duration(seconds) : '';
}

function ordinal(number) {
  const teen = Math.floor((number % 100) / 10) === 1;
  const ending = teen ? 'th' : (['th', 'st', 'nd', 'rd'][number % 10] ?? 'th');
  return number + ending;
}

/** A time of day, with the date where it is another day's. */
function clock(time) {
  const date = new Date(time * SECOND);
  const today = date.toDateString() === new Date().toDateString();
  const options = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' };
  return today
    ? date.toLocaleTimeString([], { ...options, second: '2-digit' })
    : date.toLocaleString([], { day: 'numeric', month: 'short', ...options });
}

/** Letters of scripts that are written from right to left. */
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** A name as one run: one that is written from right to left leaves the words around it in their order. */
function isolate(name) {
  return RIGHT_TO_LEFT.test(name) ? `\u2068${name}\u2069` : name;
}

function shortName(name) {
  return isolate(
    name.endsWith('.ipynb') ? name.slice(name.lastIndexOf('/') + 1) : name
  );
}

// --- Drawing -------------------------------------------------------------------------------------

/** Make an element; `on` has its listeners, `data` its data attributes. */
function make(tag, attributes = {}, ...children) {
  const { on = {}, data = {}, ...rest } = attributes;
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) {
    element.setAttribute(name, value);
  }
  Object.assign(element.dataset, data);
  for (const [name, listener] of Object.entries(on)) {
    element.addEventListener(name, listener);
  }
  element.append(...children);
  return element;
}

/** Say something where it is not said already: the focus and a reader's place stay where they are. */
function say(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Set a data attribute, or remove it where there is nothing to say. */
function mark(element, name, value) {
  if (value === null || value === false) {
    delete element.dataset[name];
  } else if (element.dataset[name] !== String(value)) {
    element.dataset[name] = value;
  }
}

const lists = new WeakMap();

/**
 * Make a parent's children those of the items: who is there already is updated, and stays.
 *
 * @param view - Makes the view of an item: its element, and what brings it up to date.
 */
function list(parent, items, key, view) {
  const before = lists.get(parent) ?? new Map();
  const after = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    const found = before.get(name) ?? view(item);
    after.set(name, found);
    before.delete(name);
    found.update(item);
    if (found.element === place) {
      place = place.nextSibling;
    } else {
      parent.insertBefore(found.element, place);
    }
  }
  for (const { element } of before.values()) {
    element.remove();
  }
  lists.set(parent, after);
}

/** A table's head and body. */
function table(caption, columns, numbers, className) {
  const heads = Object.entries(columns).map(([name, text]) =>
    make(
      'th',
      {
        scope: 'col',
        role: 'columnheader',
        class: `${numbers.has(name) ? 'number ' : ''}column-${name}`
      },
      make('span', {}, text)
    )
  );
  const title = make('caption', {}, caption);
  const body = make('tbody', { role: 'rowgroup' });
  // Rows become cards where it is narrow, and browsers then forget what they are.
  const element = make(
    'table',
    { class: className, role: 'table' },
    title,
    make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, ...heads)),
    body
  );
  return { element, body };
}

function cell(className, label) {
  const element = make('td', { role: 'cell', class: className });
  mark(element, 'label', label ?? null);
  return element;
}

/** A cell of a text, and a remark under it. */
function noted(className, label) {
  const element = cell(className, label);
  const [text, note] = [make('span'), make('small')];
  element.append(text, note);
  return {
    element,
    update(said, remark = '') {
      say(text, said);
      say(note, remark);
      note.hidden = !remark;
      mark(element, 'empty', said || remark ? null : '');
    }
  };
}

// --- GPUs and notebooks --------------------------------------------------------------------------

function memoryBar(className = '') {
  const element = make('div', {
    class: `memory ${className}`,
    'aria-hidden': 'true'
  });
  return {
    element,
    update(kinds, total) {
      const shown = kinds.filter(([, bytes]) => bytes > 0);
      list(
        element,
        shown,
        ([kind]) => kind,
        ([kind]) => {
          const span = make('span', { data: { kind } });
          return {
            element: span,
            update([, bytes]) {
              span.style.width = `${(100 * bytes) / Math.max(total, 1)}%`;
            }
          };
        }
      );
    }
  };
}

function curve() {
  const namespace = 'http://www.w3.org/2000/svg';
  const element = document.createElementNS(namespace, 'svg');
  const line = document.createElementNS(namespace, 'polyline');
  element.append(line);
  element.setAttribute('width', 72);
  element.setAttribute('height', 16);
  element.setAttribute('aria-hidden', 'true');
  return {
    element,
    update(values) {
      const step = 72 / (SAMPLES - 1);
      const first = SAMPLES - values.length;
      line.setAttribute(
        'points',
        values
          .map(
            (value, index) =>
              `${((first + index) * step).toFixed(1)},${(15 - (14 * value) / 100).toFixed(1)}`
          )
          .join(' ')
      );
    }
  };
}

function gpuView(gpu, node) {
  const title = make('h3');
  const badge = make('span', { class: 'badge' }, TEXT.draining);
  const button = make('button', { type: 'button', class: 'plain' });
  const bar = memoryBar();
  const used = make('span');
  const load = make('span');
  const lines = curve();
  const legend = make('ul', { class: 'legend' });
  let now = gpu;
  button.addEventListener('click', () =>
    now.draining ? undrain(now, node()) : askToDrain(now, node())
  );
  const element = make(
    'section',
    { class: 'gpu' },
    make('header', {}, title, badge, button),
    bar.element,
    make(
      'div',
      { class: 'figures' },
      used,
      make('span', { class: 'busy' }, lines.element, load)
    ),
    legend
  );
  return {
    element,
    update(gpu) {
      now = gpu;
      say(title, TEXT.gpu(gpu));
      title.title = gpu.uuid;
      badge.hidden = !gpu.draining;
      button.hidden = !state.viewer.may_act;
      say(button, gpu.draining ? TEXT.undrain : TEXT.drain);
      const kinds = Object.entries(gpu.memory);
      bar.update(
        kinds.filter(([kind]) => kind !== 'free'),
        gpu.total
      );
      say(used, TEXT.used(gpu.used, gpu.total));
      say(load, TEXT.busy(gpu.utilization));
      lines.update(samples.get(gpu.uuid) ?? []);
      list(
        legend,
        kinds.filter(([, bytes]) => bytes > 0),
        ([kind]) => kind,
        ([kind]) => {
          const item = make('li', { data: kind === 'free' ? {} : { kind } });
          return {
            element: item,
            update: ([, bytes]) =>
              say(item, `${TEXT.kinds[kind]} ${size(bytes)}`)
          };
        }
      );
    }
  };
}

function notebookView(notebook, node) {
  const name = make('div', { class: 'name' });
  const owner = make('small');
  const word = make('span', { class: 'state' });
  const since = make('small');
  const why = noted('why');
  const gpus = noted('number', TEXT.columns.gpus);
  const memory = noted('number', TEXT.columns.memory);
  const ran = noted('number', TEXT.columns.ran);
  const waited = noted('number', TEXT.columns.waited);
  const [first, second] = [cell(''), cell('')];
  const last = cell('act');
  const button = make('button', { type: 'button' }, '⋯');
  let now = notebook;
  first.append(name, owner);
  second.append(word, since);
  button.addEventListener('click', () => askToAct(now, node()));
  const element = make(
    'tr',
    { role: 'row' },
    first,
    second,
    ...[why, gpus, memory, ran, waited].map(view => view.element),
    last
  );
  return {
    element,
    update(notebook) {
      now = notebook;
      const called = shortName(notebook.name);
      say(name, called);
      name.title = notebook.name;
      const user = notebook.user || TEXT.someone;
      say(
        owner,
        notebook.mine ? `${isolate(user)} (${TEXT.you})` : isolate(user)
      );
      // Another's has no name but that.
      owner.hidden = user === notebook.name;
      mark(element, 'hidden', owner.hidden ? '' : null);
      mark(element, 'mine', notebook.mine ? '' : null);
      mark(word, 'state', notebook.state);
      const known = TEXT.states[notebook.state] ?? notebook.state;
      say(
        word,
        notebook.state === 'waiting'
          ? known + TEXT.place(notebook.position)
          : known
      );
      say(
        since,
        notebook.since == null ? '' : duration(node().now - notebook.since)
      );
      const asked = [notebook.held ? TEXT.isHeld : '', notebook.wishes];
      why.update(notebook.why, asked.filter(Boolean).join(', '));
      gpus.update(notebook.gpus.filter(index => index != null).join(', '));
      const { resident, pinned, swapped } = notebook.memory;
      const here = resident + pinned;
      memory.update(
        here || !swapped ? (here ? size(here) : TEXT.noMemory) : '',
        swapped ? TEXT.swapped(swapped) : ''
      );
      ran.update(some(notebook.ran));
      waited.update(
        some(notebook.waited),
        notebook.waits > 1 ? TEXT.times(notebook.waits) : ''
      );
      if (state.viewer.may_act && !button.isConnected) {
        last.append(button);
      } else if (!state.viewer.may_act) {
        button.remove();
      }
      button.setAttribute('aria-label', TEXT.act.open(called));
    }
  };
}

function nodeView(first) {
  let now = first;
  const node = () => now;
  const title = make('h2');
  const facts = make('span', { class: 'quiet' });
  const message = make('p', { class: 'notice' });
  const away = make('p', { class: 'notice' });
  const button = make(
    'button',
    { type: 'button', class: 'plain', on: { click: () => askMessage(now) } },
    TEXT.maintenance
  );
  const processes = make('ul', { class: 'processes' });
  const gpus = make('div', { class: 'gpus' });
  const cards = make('div', { class: 'cards' });
  cards.style.display = 'contents';
  const hostBar = memoryBar('host');
  const hostText = make('span');
  const host = make(
    'section',
    { class: 'gpu' },
    make('header', {}, make('h3', {}, TEXT.hostTitle)),
    hostBar.element,
    make('div', { class: 'figures' }, hostText)
  );
  const empty = make('p', { class: 'empty' });
  const { element: grid, body } = table(
    TEXT.notebooks(first.name),
    TEXT.columns,
    new Set(['gpus', 'memory', 'ran', 'waited']),
    'fixed'
  );
  const notebooks = make('div', { class: 'notebooks' }, grid, empty);
  gpus.append(cards, host);
  const element = make(
    'section',
    { class: 'node', 'aria-label': first.name },
    make('header', {}, title, facts, button),
    message,
    away,
    gpus,
    processes,
    notebooks
  );
  return {
    element,
    update(node_) {
      now = node_;
      say(title, now.name);
      say(facts, now.known ? TEXT.facts(now) : '');
      button.hidden = !state.viewer.may_act || Boolean(now.away);
      mark(element, 'away', now.away ? '' : null);
      away.hidden = !now.away;
      say(
        away,
        now.known
          ? TEXT.away(clock(now.since), now.error)
          : TEXT.awayNever(now.error)
      );
      message.hidden = !now.maintenance;
      say(message, now.maintenance ? TEXT.message(now.maintenance) : '');
      gpus.hidden = notebooks.hidden = processes.hidden = !now.known;
      if (!now.known) {
        return;
      }
      list(
        cards,
        now.gpus,
        gpu => gpu.uuid,
        gpu => gpuView(gpu, node)
      );
      list(
        processes,
        now.processes,
        text => text,
        text => ({ element: make('li', {}, text), update() {} })
      );
      host.hidden = !now.host;
      if (now.host) {
        hostBar.update([['swapped', now.host.swapped]], now.host.budget);
        say(hostText, TEXT.host(now.host));
      }
      const shown = now.notebooks.filter(notebook => matches(notebook, now));
      list(
        body,
        shown,
        notebook => notebook.id,
        notebook => notebookView(notebook, node)
      );
      grid.hidden = !shown.length;
      empty.hidden = Boolean(shown.length);
      say(
        empty,
        !now.gpus.length
          ? TEXT.noGpus
          : now.notebooks.length
            ? TEXT.noMatch
            : TEXT.noNotebooks
      );
    }
  };
}

function matches(notebook, node) {
  return [notebook.name, notebook.user, node.name].some(text =>
    (text ?? '').toLowerCase().includes(filter)
  );
}

function gpusView() {
  const summary = make('p', { class: 'quiet' });
  const input = make('input', {
    type: 'search',
    placeholder: TEXT.filter,
    'aria-label': TEXT.filter
  });
  const nodes = make('div');
  const empty = make('p', { class: 'empty' }, TEXT.noNodes);
  input.addEventListener('input', () => {
    filter = input.value.trim().toLowerCase();
    draw();
  });
  const element = make(
    'div',
    {},
    make('div', { class: 'bar' }, summary, input),
    nodes,
    empty
  );
  return {
    element,
    update() {
      const all = [...state.nodes.values()];
      const notebooks = all.flatMap(node => node.notebooks ?? []);
      say(
        summary,
        TEXT.summary(
          all.length,
          all.filter(node => node.away).length,
          all.flatMap(node => node.gpus ?? []).length,
          notebooks.length,
          notebooks.filter(notebook => notebook.state === 'waiting').length
        )
      );
      input.hidden = notebooks.length < 2;
      empty.hidden = all.length > 0;
      const shown = all.filter(
        node =>
          !filter ||
          node.away ||
          (node.notebooks ?? []).some(notebook => matches(notebook, node))
      );
      list(nodes, shown, node => node.name, nodeView);
    }
  };
}

// --- Users ---------------------------------------------------------------------------------------

/** The users of all nodes; figures of one are added up, but for the time that they have now. */
function users() {
  const found = new Map();
  for (const node of state.nodes.values()) {
    for (const user of node.users ?? []) {
      const known = found.get(user.name);
      if (!known) {
        found.set(user.name, { ...user, memory: { ...user.memory } });
        continue;
      }
      for (const name of ['notebooks', 'waiting', 'waits', 'waited', 'ran']) {
        known[name] += user[name];
      }
      for (const kind of Object.keys(user.memory)) {
        known.memory[kind] += user.memory[kind];
      }
      if ((user.share ?? -1) > (known.share ?? -1)) {
        [known.share, known.limit] = [user.share, user.limit];
      }
      known.quota ||= user.quota;
    }
  }
  return [...found.values()].sort(
    (a, b) => b.mine - a.mine || a.name.localeCompare(b.name)
  );
}

function userView() {
  const { userColumns: columns } = TEXT;
  const name = cell('name');
  const notebooks = noted('number', columns.notebooks);
  const share = cell('number', columns.share);
  const value = make('span');
  const fill = make('span');
  const limit = make('i');
  const bar = make(
    'span',
    { class: 'share', 'aria-hidden': 'true' },
    fill,
    limit
  );
  const ran = noted('number', columns.ran);
  const memory = noted('number', columns.memory);
  const swapped = noted('number', columns.swapped);
  const waited = noted('number', columns.waited);
  const quota = noted('why');
  share.append(value, bar);
  const element = make(
    'tr',
    { role: 'row' },
    name,
    notebooks.element,
    share,
    ...[ran, memory, swapped, waited, quota].map(view => view.element)
  );
  return {
    element,
    update(user) {
      const called = isolate(user.name);
      say(name, user.mine ? `${called} (${TEXT.you})` : called);
      mark(element, 'mine', user.mine ? '' : null);
      notebooks.update(
        String(user.notebooks),
        user.waiting ? TEXT.waiting(user.waiting) : ''
      );
      const known = user.share != null;
      say(value, known ? `${digits(100 * user.share)}${SPACE}%` : '');
      bar.hidden = !known;
      fill.style.width = `${Math.min(100, 100 * (user.share ?? 0))}%`;
      limit.hidden = !user.limit;
      limit.style.left = `${100 * (user.limit ?? 0)}%`;
      const { resident, pinned, swapped: out } = user.memory;
      ran.update(some(user.ran));
      memory.update(resident + pinned ? size(resident + pinned) : '');
      swapped.update(out ? size(out) : '');
      waited.update(
        some(user.waited),
        user.waits > 1 ? TEXT.times(user.waits) : ''
      );
      quota.update(user.quota);
    }
  };
}

function usersView() {
  const { element: grid, body } = table(
    TEXT.users,
    TEXT.userColumns,
    new Set(['notebooks', 'share', 'ran', 'memory', 'swapped', 'waited']),
    ''
  );
  const empty = make('p', { class: 'empty' }, TEXT.noUsers);
  const element = make('section', { class: 'panel' }, grid, empty);
  return {
    element,
    update() {
      const found = users();
      list(body, found, user => user.name, userView);
      grid.hidden = !found.length;
      empty.hidden = Boolean(found.length);
    }
  };
}

// --- History -------------------------------------------------------------------------------------

function logView(title) {
  const items = make('ol', {
    class: 'log',
    tabindex: '0',
    'aria-label': title
  });
  const empty = make('p', { class: 'empty' }, TEXT.nothing);
  const element = make(
    'section',
    { class: 'panel' },
    make('h2', {}, title),
    items,
    empty
  );
  return {
    element,
    update(entries) {
      items.hidden = !entries.length;
      empty.hidden = Boolean(entries.length);
      list(
        items,
        entries,
        entry => entry.key,
        () => {
          const [time, text] = [make('time'), make('span')];
          return {
            element: make('li', {}, time, text),
            update(entry) {
              say(time, clock(entry.time));
              say(text, entry.text);
            }
          };
        }
      );
    }
  };
}

/** The entries of all nodes, the newest first; the node is named where there are several. */
function entries(member, word) {
  const all = [...state.nodes.values()];
  return all
    .flatMap(node =>
      (node[member] ?? []).map((entry, index) => ({
        time: entry.time,
        key: `${node.name} ${entry.key ?? index}`,
        text: (all.length > 1 ? `${node.name}: ` : '') + word(entry)
      }))
    )
    .sort((a, b) => b.time - a.time);
}

function historyView() {
  const actions = logView(TEXT.actions);
  const events = logView(TEXT.events);
  const element = make(
    'div',
    { class: 'columns' },
    actions.element,
    events.element
  );
  return {
    element,
    update() {
      actions.element.hidden = !state.viewer.sees_all;
      actions.update(
        entries('actions', entry => `${isolate(entry.who)} ${entry.text}`)
      );
      events.update(
        entries('events', entry =>
          [shortName(entry.name), entry.text].filter(Boolean).join(' ')
        )
      );
    }
  };
}

// --- What administrators do ----------------------------------------------------------------------

/** Open a dialog; it closes with Escape, and the focus goes back to where it was. */
function open(title, ...content) {
  const heading = make('h2', { id: 'asked' }, title);
  const dialog = make(
    'dialog',
    { 'aria-labelledby': 'asked', on: { close: () => dialog.remove() } },
    heading,
    ...content
  );
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function buttons(...made) {
  const cancel = make('button', { type: 'button' }, TEXT.cancel);
  cancel.addEventListener('click', () => cancel.closest('dialog').close());
  return make('div', { class: 'buttons' }, cancel, ...made);
}

function button(label, className, act) {
  const element = make('button', { type: 'button', class: className }, label);
  element.addEventListener('click', () => {
    element.closest('dialog').close();
    act();
  });
  return element;
}

function askToAct(notebook, node) {
  const name = shortName(notebook.name);
  const group = notebook.id;
  const choice = (word, op, body) => {
    const { label, hint, done } = TEXT.act[word];
    const element = button('', 'choice', () => act(node, op, body, done(name)));
    element.append(make('b', {}, label), make('span', {}, hint));
    return element;
  };
  open(
    TEXT.act.title(name, isolate(notebook.user)),
    make(
      'div',
      { class: 'choices' },
      choice('release', 'release', { group }),
      choice('evict', 'evict', { group }),
      notebook.held
        ? choice('unhold', 'hold', { group, on: false })
        : choice('hold', 'hold', { group, on: true })
    ),
    buttons()
  );
}

function askToDrain(gpu, node) {
  const there = node.notebooks.filter(({ gpus }) => gpus.includes(gpu.index));
  const waiting = there.filter(({ state }) => state === 'waiting').length;
  open(
    TEXT.drainTitle(gpu, node.name),
    make('p', {}, TEXT.drainHint(there.length, waiting)),
    buttons(
      button(TEXT.drainDo, 'do', () =>
        act(
          node,
          'drain',
          { gpu: gpu.uuid, on: true },
          TEXT.drained(gpu, node.name)
        )
      )
    )
  );
}

function undrain(gpu, node) {
  act(
    node,
    'drain',
    { gpu: gpu.uuid, on: false },
    TEXT.undrained(gpu, node.name)
  );
}

function askMessage(node) {
  const input = make('textarea', { rows: '3', maxlength: '500' });
  input.value = node.maintenance;
  const tell = text =>
    act(
      node,
      'maintenance',
      { text },
      text ? TEXT.maintained : TEXT.unmaintained
    );
  open(
    TEXT.maintenanceTitle(node.name),
    make('label', {}, TEXT.maintenanceLabel, input),
    buttons(
      ...(node.maintenance
        ? [button(TEXT.maintenanceEnd, '', () => tell(''))]
        : []),
      button(TEXT.maintenanceDo, 'do', () => tell(input.value.trim()))
    )
  );
  input.focus();
}

let saying;

/** Say what was done, or why it was not: aloud as well. */
function announce(text, failed = false) {
  const [said, other] = ['said', 'failed'].map(id =>
    document.getElementById(id)
  );
  clearTimeout(saying);
  said.textContent = failed ? '' : text;
  other.textContent = failed ? text : '';
  saying = setTimeout(
    () => (said.textContent = other.textContent = ''),
    failed ? 3 * SAY : SAY
  );
}

async function act(node, op, body, done) {
  try {
    const answer = await fetch(
      `${prefix}api/nodes/${encodeURIComponent(node.name)}/${op}`,
      {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', 'X-XSRFToken': xsrf() },
        body: JSON.stringify(body)
      }
    );
    if (answer.ok) {
      announce(done);
      return;
    }
    const { message } = await answer.json();
    announce(TEXT.failed(message), true);
  } catch {
    announce(TEXT.failed(TEXT.noAnswer), true);
  }
}

// --- Live ----------------------------------------------------------------------------------------

function setLink(link) {
  const element = document.getElementById('link');
  const [before, after] = [
    element.dataset.state,
    link === 'over' ? 'bad' : link
  ];
  document.body.dataset.link = after;
  element.dataset.state = after;
  say(element, TEXT.link[link]);
  if (before === 'good' && after === 'bad') {
    announce(TEXT.link[link], true);
  }
}

const heard = {
  viewer(viewer) {
    state.viewer = viewer;
  },
  node(node) {
    state.nodes.set(node.name, node);
    if (node.away) {
      return;
    }
    for (const gpu of node.gpus ?? []) {
      const known = samples.get(gpu.uuid) ?? [];
      known.push(gpu.utilization ?? 0);
      samples.set(gpu.uuid, known.slice(-SAMPLES));
    }
  },
  names(names) {
    const nodes = names.map(name => state.nodes.get(name)).filter(Boolean);
    state.nodes = new Map(nodes.map(node => [node.name, node]));
    state.ready = true;
  }
};

/** Hear one stream to its end; whether the viewer may hear another. */
async function hear(signal, alive) {
  const answer = await fetch(`${prefix}api/stream`, {
    headers: { 'X-XSRFToken': xsrf() },
    signal
  });
  if (!answer.ok) {
    return answer.status !== 403;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return true;
    }
    alive();
    text += value;
    const messages = text.split('\n\n');
    text = messages.pop();
    for (const message of messages) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(message) ?? [];
      if (kind === 'over') {
        return false;
      }
      heard[kind]?.(JSON.parse(data));
    }
    if (state.ready) {
      setLink('good');
      draw();
    }
  }
}

/** The session is over: the Hub says on the way back whether there can be another. Once only, if it does not help. */
function logInAgain() {
  const last = Number(sessionStorage.getItem('gpushare-login'));
  if (Date.now() - last > AGAIN) {
    sessionStorage.setItem('gpushare-login', Date.now());
    location.reload();
  } else {
    setLink('over');
  }
}

let listening = null;

async function listen() {
  if (listening) {
    return;
  }
  let pause = SECOND;
  while (!document.hidden) {
    listening = new AbortController();
    let silence;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => listening?.abort(), SILENCE);
      pause = SECOND;
    };
    try {
      alive();
      if (!(await hear(listening.signal, alive))) {
        logInAgain();
        return;
      }
    } catch {
      // The service, or the way to it, is gone for a while.
    } finally {
      clearTimeout(silence);
    }
    if (document.hidden) {
      break;
    }
    setLink('bad');
    await new Promise(resolve => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, 15 * SECOND);
  }
  listening = null;
}

let leaving;

document.addEventListener('visibilitychange', () => {
  clearTimeout(leaving);
  if (document.hidden) {
    leaving = setTimeout(() => listening?.abort(), HIDDEN);
  } else {
    void listen();
  }
});

// --- The page ------------------------------------------------------------------------------------

const views = { gpus: gpusView(), users: usersView(), history: historyView() };

function chosen() {
  const name = location.hash.slice(1);
  return name in views ? name : 'gpus';
}

function draw() {
  views[chosen()].update();
}

function choose() {
  const name = chosen();
  for (const link of document.querySelectorAll('#views a')) {
    if (link.hash === `#${name}`) {
      link.setAttribute('aria-current', 'page');
    } else {
      link.removeAttribute('aria-current');
    }
  }
  if (state.ready) {
    draw();
  }
  main.replaceChildren(views[name].element);
}

document
  .getElementById('views')
  .append(
    ...Object.entries(TEXT.views).map(([name, text]) =>
      make('a', { href: `#${name}` }, text)
    )
  );
addEventListener('hashchange', choose);
choose();
void listen();
