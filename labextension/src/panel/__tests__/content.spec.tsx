// SPDX-License-Identifier: BSD-3-Clause
import {
  act,
  fireEvent,
  render,
  screen,
  waitFor,
  within
} from '@testing-library/react';
import { Signal } from '@lumino/signaling';
import axe from 'axe-core';
import React from 'react';

import { FakeCommands } from '../../__tests__/commands';
import {
  explained,
  FakeModel,
  GiB,
  makeGroup,
  makeHibernated,
  makeSession,
  makeSleep,
  makeSpan,
  makeStatus,
  makeTimeline,
  makeWaiting,
  makeWaking,
  makeWishes,
  plain,
  trans
} from '../../__tests__/fixtures';
import type { IStatus, IUnshared } from '../../core/status';
import { CommandIds } from '../../tokens';
import { PanelContent } from '../content';

interface ISetUp {
  model: FakeModel;
  commands: FakeCommands;
  container: HTMLElement;
  /** Another notebook comes to the front. */
  bringToFront: (group: string | null) => void;
  /** The scheduler says something new. */
  tell: (status: IStatus) => void;
}

function setUp(status: IStatus | null, front: string | null = null): ISetUp {
  const model = new FakeModel(status);
  const commands = new FakeCommands(model);
  const changed = new Signal<object, void>({});
  let current = front;
  const { container } = render(
    <PanelContent
      model={model}
      commands={commands}
      trans={trans}
      names={({ groups }) => new Map(groups.map(({ id, name }) => [id, name]))}
      currentGroup={() => current}
      changed={changed}
    />
  );
  return {
    model,
    commands,
    container,
    bringToFront: group =>
      act(() => {
        current = group;
        changed.emit();
      }),
    tell: status =>
      act(() => {
        model.status = status;
      })
  };
}

/** What an element says, with ordinary spaces. */
function textOf(element: Element | null | undefined): string {
  return plain(element?.textContent ?? '');
}

/** The rows of a section. */
function rowsOf(name: string): HTMLElement[] {
  return [...screen.getByRole('region', { name }).querySelectorAll('li')];
}

function rowOf(name: string): HTMLElement {
  const row = [...document.querySelectorAll('li')].find(
    row => within(row).queryByText(name) !== null
  );
  if (!row) {
    throw new Error(`There is no row of ${name}.`);
  }
  return row;
}

const running = makeGroup('train', {
  state: 'running',
  since: 90,
  cell: { msg_id: 'm', since: 88, waited: 0, ran: 9 },
  yields_in: 5
});
const busy = makeStatus(running, makeWaiting('plots', 1), makeGroup('eda'));

/** Open the table of the timeline; browsers tell it a moment later. */
async function openTable(): Promise<void> {
  await act(async () => {
    fireEvent.click(screen.getByText('As a table'));
    await new Promise(resolve => setTimeout(resolve));
  });
}

async function violations(container: HTMLElement): Promise<string[]> {
  const { violations } = await axe.run(container, {
    // Colours and regions are those of the page, which is not here.
    rules: { 'color-contrast': { enabled: false }, region: { enabled: false } }
  });
  return violations.map(
    ({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`
  );
}

beforeAll(() => {
  // axe asks whether letters are pictures; here there are no pictures at all.
  HTMLCanvasElement.prototype.getContext = () => null;
});

describe('PanelContent', () => {
  it('shows who runs, who waits and why, and who is idle', () => {
    setUp(busy, 'plots');
    const [runs] = rowsOf('Running 1');
    expect(textOf(runs)).toContain('train.ipynb');
    expect(textOf(runs)).toContain('cell for 12 s · yields within 5 s');
    expect(
      within(runs!).getByRole('progressbar').getAttribute('aria-valuenow')
    ).toBe('67');
    const [waits] = rowsOf('Waiting 1');
    within(waits!).getByLabelText('position 1');
    expect(textOf(waits)).toContain(
      'needs 60 GiB, lacks 15 GiB: train has the GPU'
    );
    expect(textOf(waits)).toContain('waited 2 s, about 4 s more');
    expect(textOf(waits)).not.toContain('2–9 s');
    expect(plain(within(waits!).getByTitle(/Nine of ten/).title)).toBe(
      'Nine of ten such waits end in 2–9 s.'
    );
    expect(waits!.getAttribute('aria-current')).toBe('true');
    const [rests] = rowsOf('Idle 1');
    expect(textOf(rests)).toContain('5 GiB resident, 2 GiB in host memory');
    expect(rests!.getAttribute('aria-current')).toBeNull();
  });

  it('shows a name that is written from right to left as one run', () => {
    const name = 'تجربة ١.ipynb';
    setUp(makeStatus({ ...makeGroup('a'), name, sessions: [] }));
    const shown = screen.getByText(name);
    expect(shown.tagName).toBe('BDI');
    expect(shown.getAttribute('dir')).toBe('auto');
  });

  it('shows this notebook and the queue before several GPUs, and idle GPUs in a line', () => {
    const [gpu] = busy.gpus;
    const gpus = Array.from({ length: 8 }, (_, index) => ({
      ...gpu!,
      uuid: `GPU-${index}`,
      index,
      foreign: 0,
      utilization: index ? 0 : 40
    }));
    setUp({ ...busy, gpus }, 'eda');
    const regions = screen
      .getAllByRole('region')
      .map(
        region =>
          plain(region.getAttribute('aria-label') ?? '') ||
          textOf(region.querySelector('h3'))
      );
    expect(regions.slice(0, 4)).toEqual([
      'This notebook 1',
      'Waiting 1',
      'Running 1',
      'GPU 0, Simulated GPU'
    ]);
    expect(textOf(rowsOf('This notebook 1')[0])).toContain('eda.ipynb');
    expect(screen.queryByRole('region', { name: /^Idle/ })).toBeNull();
    const busyGpu = screen.getByRole('region', {
      name: 'GPU 0, Simulated GPU'
    });
    within(busyGpu).getByRole('img', { name: /GPU memory/ });
    const idleGpu = screen.getByRole('region', {
      name: 'GPU 3, Simulated GPU'
    });
    expect(within(idleGpu).queryByRole('img')).toBeNull();
    expect(textOf(idleGpu)).toContain('idle · 15 of 20 GiB in use');
    fireEvent.click(within(idleGpu).getByRole('button'));
    within(idleGpu).getByRole('img', { name: /GPU memory/ });
    fireEvent.click(
      within(idleGpu).getByRole('button', { name: /as one line/ })
    );
    expect(within(idleGpu).queryByRole('img')).toBeNull();
  });

  it('says that the host has no memory left', () => {
    const host = { budget: 64 * GiB, swapped: 64 * GiB, promised: 0 };
    const { container } = setUp({ ...busy, host });
    expect(textOf(container)).toContain(
      'Host memory is full: swapped data takes 64 GiB of 64 GiB.'
    );
  });

  it('shows no turn that ends while nobody waits', () => {
    setUp(makeStatus({ ...running, yields_in: null }));
    expect(screen.queryByRole('progressbar')).toBeNull();
  });

  it('says what people asked for', () => {
    const asked = {
      class: 'background' as const,
      wishes: makeWishes({
        priority: 'background',
        keep: true,
        frozen: true,
        memory: 20 * GiB,
        request: 0.25,
        limit: 0.5,
        weight: 2
      })
    };
    setUp(makeStatus(makeGroup('a', asked), { ...running, ...asked }));
    for (const text of [
      ...['frozen', 'background', 'kept', 'at most 20 GiB'],
      ...['request 25 %', 'limit 50 %', 'weight 2']
    ]) {
      expect(textOf(rowOf('a.ipynb'))).toContain(text);
      expect(textOf(rowOf('train.ipynb'))).toContain(text);
    }
  });

  it('shows who is hibernated, who wakes, and who is left alone', async () => {
    const { container } = setUp(
      makeStatus(
        makeHibernated('asleep'),
        makeWaking('wakes'),
        makeGroup('parks', { hibernation: makeSleep({ state: 'parking' }) }),
        makeGroup('alone', {
          hibernation: makeSleep({ state: 'refused', code: 'ipc' })
        })
      )
    );
    const asleep = rowOf('asleep.ipynb');
    expect(rowsOf('Idle 3')).toContain(asleep);
    expect(textOf(asleep)).toContain('6 GiB');
    expect(textOf(asleep)).toContain('frees 719 MiB · about 1.2 s to wake');
    expect(within(asleep).getByText('Hibernated').title).toContain(
      'nothing of it is on the GPU'
    );
    expect(asleep.querySelector('[data-hollow]')).not.toBeNull();
    const [wakes] = rowsOf('Waiting 1');
    within(wakes!).getByText('Waking…');
    expect(textOf(wakes)).toContain('it was hibernated, and is being woken');
    expect(textOf(wakes)).toContain('waited 0.5 s, about 0.7 s more');
    within(rowOf('parks.ipynb')).getByText('Hibernating…');
    const why = within(rowOf('alone.ipynb')).getByText('not hibernated');
    expect(why.title).toContain('its process shares GPU memory');
    expect(why.tabIndex).toBe(0);
    expect(why.dataset['explanation']).toBe(why.title);
    expect(await violations(container)).toEqual([]);
  });

  it('takes what the driver keeps of hibernated ones for no program', () => {
    const status = makeStatus(makeHibernated('asleep'));
    const [gpu] = status.gpus;
    const left = { ...gpu!, foreign: 4 * 1024 ** 2 };
    const { tell, container } = setUp({ ...status, gpus: [left] });
    expect(screen.queryByRole('region', { name: 'Other programs' })).toBeNull();
    expect(textOf(container)).toContain('left by hibernated notebooks 4 MiB');
    tell({ ...status, gpus: [{ ...left, foreign: GiB }] });
    screen.getByRole('region', { name: 'Other programs' });
    tell({ ...makeStatus(), gpus: [left] });
    screen.getByRole('region', { name: 'Other programs' });
    tell({ ...makeStatus(), gpus: [{ ...left, foreign: 0 }] });
    expect(screen.queryByRole('region', { name: 'Other programs' })).toBeNull();
  });

  it.each<[string, Partial<IStatus>, string]>([
    ['after how long', {}, 'when they have been idle for 10 min'],
    [
      'that it is off',
      {
        settings: {
          quantum: 'auto',
          anti_thrash: 'auto',
          policy: 'burst',
          hibernate_after: null
        }
      },
      'Idle notebooks do not hibernate.'
    ],
    [
      'that it cannot be',
      {
        hibernation: {
          able: false,
          code: 'helper',
          text: 'it is not there',
          moves: false
        }
      },
      'does not run: it is not there.'
    ]
  ])('says %s idle notebooks hibernate', (_, changes, said) => {
    setUp({ ...makeStatus(), ...changes });
    const mode = screen.getByRole('button', { name: /How notebooks share/ });
    expect(plain(mode.title)).toContain(said);
  });

  it('shows what other programs use, and who does not share', () => {
    const status = makeStatus();
    status.unshared = [
      {
        kernel_id: 'k',
        code: 'opted_out',
        params: {},
        sessions: [
          {
            path: 'x/b.ipynb',
            name: 'b.ipynb',
            type: 'notebook',
            kernel_id: 'k'
          }
        ]
      }
    ];
    // The same is said once.
    status.notices = [
      { group: 'k', code: 'opted_out', params: {}, time: 1 },
      { group: 'z', code: 'new', params: { text: 'Mind the gap.' }, time: 1 }
    ];
    const { container } = setUp(status);
    expect(textOf(rowsOf('Other programs')[0])).toContain('2 GiB');
    expect(
      textOf(screen.getByRole('region', { name: 'Other programs' }))
    ).toContain('gpushare kernelspec add shared');
    expect(textOf(rowsOf('Not sharing 1')[0])).toMatch(
      /b\.ipynb.*GPUSHARE_DISABLE=1/
    );
    expect(
      [...container.querySelectorAll('.jp-GpuShare-notice')].map(
        ({ textContent }) => textContent
      )
    ).toEqual(['Mind the gap.']);
  });

  it('says what administrators do with a GPU, and tell everybody', () => {
    const status = makeStatus();
    const [gpu] = status.gpus;
    const drained = { ...gpu!, uuid: 'GPU-1', index: 1, draining: true };
    const { container } = setUp({
      ...status,
      gpus: [gpu!, drained],
      notices: [
        {
          group: '',
          code: 'maintenance',
          params: { text: 'stops at 18:00' },
          time: 1
        },
        {
          group: 'k',
          code: 'underreported',
          params: { user: 'ada', pid: 7, bytes: 2 * GiB },
          time: 1
        }
      ]
    });
    const heads = [...container.querySelectorAll('.jp-GpuShare-gpuHead')];
    expect(heads.map(head => textOf(head).includes('being emptied'))).toEqual([
      false,
      true
    ]);
    expect(
      [...container.querySelectorAll('.jp-GpuShare-notice')].map(textOf)
    ).toEqual([
      'Maintenance: stops at 18:00',
      'A process of ada holds 2 GiB of GPU memory that it does not state'
    ]);
  });

  it('tells those who do not share apart by their folders', () => {
    const kernel = (id: string, ...paths: string[]): IUnshared => ({
      kernel_id: id,
      code: 'opted_out',
      params: {},
      sessions: paths.map(path => makeSession(path, id))
    });
    setUp({
      ...makeStatus(),
      unshared: [kernel('k', 'x/b.ipynb'), kernel('l', 'y/b.ipynb', 'c.ipynb')]
    });
    const rows = rowsOf('Not sharing 2');
    expect(textOf(rows[0])).toMatch(/^x\/b\.ipynbIts/);
    expect(textOf(rows[1])).toMatch(/^y\/b\.ipynb and c\.ipynbIts/);
  });

  it('shows the first of many, and all of them if asked', () => {
    const groups = Array.from({ length: 40 }, (_, index) =>
      makeGroup(`n${index}`, { since: 90 - index })
    );
    setUp(makeStatus(...groups), 'n30');
    expect(rowsOf('Idle 40')).toHaveLength(9);
    expect(rowOf('n30.ipynb').getAttribute('aria-current')).toBe('true');
    const more = screen.getByText('Show all 40');
    expect(more.getAttribute('aria-expanded')).toBe('false');
    fireEvent.click(more);
    expect(rowsOf('Idle 40')).toHaveLength(40);
    fireEvent.click(screen.getByText('Show fewer'));
    expect(rowsOf('Idle 40')).toHaveLength(9);
  });

  it('tells several GPUs apart, and names how they are shared once', () => {
    const status = makeStatus(running);
    status.gpus.push({ ...status.gpus[0]!, uuid: 'GPU-1', index: 1 });
    setUp(status);
    const second = screen.getByRole('region', {
      name: 'GPU 1, Simulated GPU'
    });
    expect(textOf(second)).toContain('15 of 20 GiB in use');
    expect(screen.getAllByText('automatic')).toHaveLength(1);
    expect(textOf(rowOf('train.ipynb'))).toContain('yields within 5 s · GPU 0');
  });

  it.each([
    ['no_driver', 'No NVIDIA driver was found', 'not shared'],
    ['not_installed', 'The driver cannot be used', 'not shared'],
    ['bad_configuration', 'The configuration has a mistake', 'not shared'],
    ['disabled', 'GPU sharing is switched off', 'not shared'],
    ['starting', 'Starting', 'starting'],
    ['not_started', 'GPU sharing did not start', 'not shared'],
    ['scheduler_unreachable', 'The scheduler does not answer', 'not shared'],
    ['remote_kernels', 'Kernels run on another machine', 'not shared'],
    [
      'server_extension_missing',
      'The server part is not running',
      'not shared'
    ],
    ['forbidden', 'You may not see the GPU', 'not shared'],
    [
      'server_unreachable',
      'The Jupyter server does not answer',
      'connection lost'
    ]
  ])('explains %s', (code, title, link) => {
    const { container } = setUp({
      ...makeStatus(),
      availability: { code, params: {} },
      gpus: [],
      host: null
    });
    screen.getByRole('heading', { name: title });
    expect(textOf(container.querySelector('.jp-GpuShare-link'))).toContain(
      link
    );
    expect(screen.queryByRole('list')).toBeNull();
  });

  it('says a long name whole, though it is drawn in parts of which the extension goes first', () => {
    const name = 'segmentation_of_everything_version_12.ipynb';
    setUp(makeStatus(makeGroup('a', { name })));
    const [row] = rowsOf('Idle 1');
    expect(textOf(row)).toContain(name);
    within(row as HTMLElement).getByText('on_12');
    within(row as HTMLElement).getByText('.ipynb');
  });

  it('says that it waits for the first answer, and then shows it', () => {
    const { tell } = setUp(null);
    screen.getByText('Loading…');
    tell(busy);
    rowOf('train.ipynb');
    expect(screen.queryByText('Loading…')).toBeNull();
  });

  it('is not blank after a fault of its own', () => {
    const quiet = jest.spyOn(console, 'error').mockImplementation();
    try {
      const broken = { ...busy, notices: null } as unknown as IStatus;
      const { tell } = setUp(broken);
      expect(textOf(screen.getByRole('alert'))).toContain(
        'The panel could not be drawn'
      );
      tell(busy);
      fireEvent.click(screen.getByRole('button', { name: 'Try again' }));
      expect(textOf(rowOf('train.ipynb'))).toContain('cell for 12 s');
      expect(screen.queryByRole('alert')).toBeNull();
    } finally {
      quiet.mockRestore();
    }
  });

  it('counts as time passes, without a new status', async () => {
    jest.useFakeTimers();
    try {
      const { model } = setUp(busy);
      await act(async () => {
        model.now = 102;
        await jest.advanceTimersByTimeAsync(1000);
      });
      expect(textOf(rowOf('train.ipynb'))).toContain(
        'cell for 14 s · yields within 3 s'
      );
      expect(textOf(rowOf('plots.ipynb'))).toContain('about 2 s');
    } finally {
      jest.useRealTimers();
    }
  });

  it('opens the settings', () => {
    const { commands } = setUp(busy);
    fireEvent.click(
      screen.getByRole('button', { name: 'Settings of GPU sharing' })
    );
    expect(commands.executed).toEqual([
      ['settingeditor:open', { query: 'GPU sharing' }]
    ]);
  });

  it.each([
    ['nothing', makeStatus()],
    ['many states', busy],
    [
      'several GPUs',
      {
        ...busy,
        gpus: [
          ...busy.gpus,
          ...busy.gpus.map(gpu => ({
            ...gpu,
            uuid: 'GPU-1',
            index: 1,
            utilization: 0
          }))
        ]
      }
    ],
    [
      'a timeline and what does not share',
      {
        ...busy,
        timeline: makeTimeline(makeSpan(1, 'train')),
        unshared: [
          { kernel_id: 'k', code: 'opted_out', params: {}, sessions: [] }
        ]
      }
    ]
  ])('has nothing that axe finds: %s', async (_, status) => {
    const { container } = setUp(status, 'plots');
    if (status.timeline) {
      await openTable();
    }
    expect(await violations(container)).toEqual([]);
  });
});

describe('actions', () => {
  it.each([
    ['Open', CommandIds.goTo, { group: 'train' }],
    ['Release', CommandIds.release, { group: 'train' }],
    [
      'Make background',
      CommandIds.setPriority,
      { group: 'train', priority: 'background' }
    ]
  ])('%s runs its command', (name, command, args) => {
    const { commands } = setUp(busy);
    const button = within(rowOf('train.ipynb')).getByRole('button', { name });
    expect(button.getAttribute('title')).toContain(`What ${command} does`);
    button.focus();
    expect(document.activeElement).toBe(button);
    fireEvent.click(button);
    expect(commands.executed).toEqual([[command, args]]);
  });

  it('tells who points at a reason which rule it was', async () => {
    const { model } = setUp(busy);
    const name = 'train.ipynb';
    model.explanation = explained({ group: 'train', name, code: 'focus' });
    const reason = within(rowOf('plots.ipynb')).getByText(/^needs/);
    const full = reason.title;
    expect(plain(full)).toBe(
      'needs 60 GiB, lacks 15 GiB: train yields within 3 s'
    );
    fireEvent.mouseEnter(reason);
    await waitFor(() =>
      expect(reason.title).toBe(
        `${full}\ntrain comes first: it is the notebook that somebody works in`
      )
    );
    fireEvent.mouseLeave(reason);
    expect(reason.title).toBe(full);
    expect(model.explained).toEqual(['plots']);
  });

  it('shows that it became background by itself, and why', () => {
    const since = { class: 'background' as const };
    setUp(
      makeStatus(
        { ...running, ...since },
        makeGroup('eda', {
          ...since,
          last_cell: { msg_id: 'm', waited: 0, ran: 3 }
        }),
        makeWaiting('plots', 1)
      )
    );
    const shown = within(rowOf('train.ipynb')).getByText('background');
    expect(plain(shown.title)).toBe(
      'background: its cell has had 9 s of GPU time; the next cell is interactive again'
    );
    // What is idle competes with nobody.
    expect(within(rowOf('eda.ipynb')).queryByText('background')).toBeNull();
  });

  it('shows the background nowhere while nobody competes', () => {
    setUp(makeStatus({ ...running, class: 'background' }, makeGroup('eda')));
    expect(screen.queryByText('background')).toBeNull();
    expect(screen.queryByText('interactive')).toBeNull();
  });

  it('offers the class that it has not', () => {
    // It became background by itself.
    setUp(makeStatus({ ...running, class: 'background' }));

    screen.getByRole('button', { name: 'Make interactive' });
    expect(
      screen.queryByRole('button', { name: 'Make background' })
    ).toBeNull();
  });

  it('does not offer what makes no sense now', () => {
    const { commands, tell } = setUp(busy);
    commands.disabled.add(CommandIds.release);
    tell({ ...busy, groups: [{ ...running }] });
    expect(screen.queryByRole('button', { name: 'Release' })).toBeNull();
  });

  it('unfreezes what is frozen', () => {
    const wishes = makeWishes({ frozen: true });
    const { commands } = setUp(makeStatus(makeGroup('a', { wishes })));
    fireEvent.click(screen.getByRole('button', { name: 'Unfreeze' }));
    expect(commands.executed).toEqual([
      [CommandIds.toggleFrozen, { group: 'a' }]
    ]);
  });

  it('keeps the focus with a notebook that goes to another section', () => {
    const { tell } = setUp(busy);
    const release = within(rowOf('train.ipynb')).getByText('Release');
    release.closest('button')!.focus();
    tell({ ...busy, groups: [makeGroup('train'), makeGroup('eda')] });
    const [now] = rowsOf('Idle 2');
    expect(now?.contains(document.activeElement)).toBe(true);
    expect(textOf(now)).toContain('train.ipynb');
  });

  it('takes no focus that went elsewhere', async () => {
    const { tell } = setUp(busy);
    const release = within(rowOf('train.ipynb')).getByText('Release');
    release.closest('button')!.focus();
    release.closest('button')!.blur();
    await act(() => new Promise(resolve => setTimeout(resolve)));
    tell({ ...busy, groups: [makeGroup('train')] });
    expect(document.activeElement).toBe(document.body);
  });

  it('goes to the notebook by its name', () => {
    const { commands } = setUp(busy);
    fireEvent.click(screen.getByText('eda.ipynb'));
    expect(commands.executed).toEqual([[CommandIds.goTo, { group: 'eda' }]]);
  });

  it('has the rest in a menu, from which the focus returns', () => {
    const { commands } = setUp(busy);
    const more = within(rowOf('eda.ipynb')).getByRole('button', {
      name: 'More actions'
    });
    fireEvent.click(more);
    expect(more.getAttribute('aria-expanded')).toBe('true');
    const menu = screen.getByRole('menu');
    const items = within(menu)
      .getAllByRole('menuitem')
      .map(({ textContent }) => textContent);
    expect(items).toEqual([
      'Go to the Notebook',
      'Release the GPU for Others',
      'Make Background',
      'Make Interactive',
      'Let It Be Decided Automatically',
      'Keep on the GPU',
      'Limit Its Memory…',
      'Freeze',
      'Move Its Memory to the Host',
      'Hibernate Now',
      'Wake'
    ]);
    for (const key of ['ArrowUp', 'Enter']) {
      fireEvent.keyDown(menu, {
        key,
        keyCode: { ArrowUp: 38, Enter: 13 }[key]
      });
    }
    expect(commands.executed).toEqual([[CommandIds.wake, { group: 'eda' }]]);
    expect(screen.queryByRole('menu')).toBeNull();
    expect(more.getAttribute('aria-expanded')).toBe('false');
    expect(document.activeElement).toBe(more);
  });

  it('changes how notebooks share, if one may', () => {
    const { commands, tell } = setUp(busy);
    fireEvent.click(
      screen.getByRole('button', { name: 'How notebooks share: automatic' })
    );
    const menu = screen.getByRole('menu');
    for (const key of [40, 40, 13]) {
      fireEvent.keyDown(menu, { keyCode: key });
    }
    expect(commands.executed).toEqual([
      [CommandIds.setAntiThrash, { anti_thrash: 'on' }]
    ]);
    tell({ ...busy, may: { adjust: true, settings: false } });
    expect(screen.queryByRole('button', { name: /^How/ })).toBeNull();
    screen.getByText('automatic');
  });
});

describe('the live region', () => {
  const said = (): string | null => screen.getByRole('status').textContent;
  const console = { sessions: [makeSession('plots', 'plots', 'console')] };

  it('speaks when the state of the console in front changes, and only then', () => {
    const { tell } = setUp(
      makeStatus(makeWaiting('plots', 1, console)),
      'plots'
    );
    expect(said()).toBe('');
    tell(makeStatus(makeWaiting('plots', 2, { ...console, at: 101 })));
    expect(said()).toBe('');
    tell(makeStatus(makeGroup('plots', { ...console, state: 'running' })));
    expect(said()).toBe('plots.ipynb has the GPU');
    tell(makeStatus(makeWaiting('plots', 2, console)));
    expect(said()).toBe('plots.ipynb waits for the GPU, position 2');
  });

  it('says that the console in front hibernates, and wakes', () => {
    const sessions = [makeSession('c', 'eda', 'console')];
    const { tell, container } = setUp(
      makeStatus(makeGroup('eda', { sessions })),
      'eda'
    );
    const said = (): string => textOf(container.querySelector('[role=status]'));
    tell(makeStatus(makeHibernated('eda', { sessions })));
    expect(said()).toBe('eda.ipynb is hibernated');
    tell(makeStatus(makeWaking('eda', { sessions })));
    expect(said()).toBe('eda.ipynb is being woken');
  });

  it('leaves it to the cell of a notebook to say how it fares', () => {
    const { tell } = setUp(makeStatus(makeGroup('plots')), 'plots');
    tell(makeStatus(makeWaiting('plots', 1)));
    expect(said()).toBe('');
    tell(makeStatus(makeWaiting('plots', 1, { state: 'running' })));
    expect(said()).toBe('');
    tell(makeStatus(makeGroup('plots')));
    expect(said()).toBe('');
    // What a notebook does between its cells, nobody else says.
    tell(makeStatus(makeWaiting('plots', 1, { cell: null })));
    expect(said()).toBe('plots.ipynb waits for the GPU, position 1');
  });

  it('is quiet about others, and when another notebook comes to the front', () => {
    const { tell, bringToFront } = setUp(busy, 'eda');
    tell({ ...busy, groups: [makeGroup('train'), makeGroup('eda')] });
    expect(said()).toBe('');
    bringToFront('train');
    expect(said()).toBe('');
    expect(rowOf('train.ipynb').getAttribute('aria-current')).toBe('true');
    bringToFront(null);
    expect(said()).toBe('');
  });
});

describe('the timeline', () => {
  const timeline = makeTimeline(
    makeSpan(1, 'train', { start: 20, end: 50 }),
    makeSpan(2, 'plots', { kind: 'wait', start: 60, end: null }),
    makeSpan(3, 'train', { kind: 'in', start: 70, end: 72, bytes: 3 * GiB }),
    makeSpan(4, 'eda', { start: -500, end: -400 })
  );
  const status = { ...busy, timeline };

  async function readTable(): Promise<string[][]> {
    await openTable();
    return [...document.querySelectorAll('tbody tr')].map(row =>
      [...row.querySelectorAll('td')].map(textOf)
    );
  }

  it('is a picture, and a table of the same, newest first', async () => {
    const { container } = setUp(status);
    const lanes = [
      ...container.querySelectorAll('.jp-GpuShare-lanes > div')
    ].map(({ textContent }) => textContent);
    expect(lanes).toEqual(['plots', 'train']);
    const drawn = [...container.querySelectorAll('svg g')].map(lane =>
      [...lane.querySelectorAll('path')]
        .filter(path => path.getAttribute('d'))
        .map(path => path.getAttribute('data-kind'))
    );
    expect(drawn).toEqual([['wait'], ['burst', 'in']]);
    const rows = await readTable();
    expect(
      rows.map(([name, what, , length, size]) => [name, what, length, size])
    ).toEqual([
      ['train', 'memory arriving', '2.0 s', '3 GiB'],
      ['plots', 'waiting', '40 s so far', ''],
      ['train', 'running', '30 s', '']
    ]);
  });

  it('is read with the arrow keys', () => {
    setUp(status);
    const picture = screen.getByRole('slider');
    const text = (): string =>
      plain(picture.getAttribute('aria-valuetext') ?? '');
    const press = (key: string): void => {
      fireEvent.keyDown(picture, { key });
    };
    picture.focus();
    expect(text()).toBe('3 things');
    press('ArrowDown');
    expect(text()).toContain('plots.ipynb · waiting · 40 s so far');
    press('ArrowDown');
    expect(text()).toContain('train.ipynb · memory arriving · 2.0 s · 3 GiB');
    press('ArrowLeft');
    expect(text()).toContain('train.ipynb · running · 30 s');
    expect(
      document.querySelector('.jp-GpuShare-tooltip')!.textContent
    ).toContain('train.ipynb · running');
    press('Escape');
    expect(document.querySelector('.jp-GpuShare-tooltip')).toBeNull();
  });

  it('explains what the pointer is on', () => {
    const { container } = setUp(status);
    const svg = container.querySelector('.jp-GpuShare-marks svg')!;
    // 200 pixels for 300 seconds; the second lane.
    fireEvent(
      svg,
      new MouseEvent('pointermove', {
        bubbles: true,
        clientX: 155,
        clientY: 20
      })
    );
    const tip = container.querySelector('.jp-GpuShare-tooltip');
    expect(textOf(tip)).toContain('train.ipynb · running · 30 s');
    fireEvent.pointerOut(svg, { relatedTarget: container });
    expect(container.querySelector('.jp-GpuShare-tooltip')).toBeNull();
  });

  it('sums the lanes for which there is no room', async () => {
    const spans = Array.from({ length: 40 }, (_, index) =>
      makeSpan(index, `n${index}`, { start: 20, end: 50 + index })
    );
    const { container } = setUp({ ...busy, timeline: makeTimeline(...spans) });
    expect(container.querySelectorAll('.jp-GpuShare-lanes > div')).toHaveLength(
      12
    );

    screen.getByText('and 28 others: ran 28 times, waited 0 times');
    expect(await readTable()).toHaveLength(40);
  });

  it('says that nothing happened', () => {
    setUp({ ...busy, timeline: makeTimeline() });
    screen.getByText('Nobody used the GPU in this time.');
  });
});
