// SPDX-License-Identifier: BSD-3-Clause
import { act, fireEvent, screen, within } from '@testing-library/react';

import {
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
  makePreferences,
  plain
} from '../../__tests__/fixtures';
import type { INotice, IStatus, IUnshared } from '../../core/status';
import {
  busy,
  openTable,
  rowOf,
  rowsOf,
  running,
  setUp,
  textOf,
  violations
} from './panel';

beforeAll(() => {
  // axe asks whether letters are pictures; here there are no pictures at all.
  HTMLCanvasElement.prototype.getContext = () => null;
});

describe('PanelContent', () => {
  it('shows running, waiting and idle notebooks, and the reasons', () => {
    setUp(busy);
    const [runs] = rowsOf('Running 1');
    expect(textOf(runs)).toContain('train.ipynb');
    expect(textOf(runs)).toContain('turn ends within 5 s');
    expect(
      within(runs!).getByRole('progressbar').getAttribute('aria-valuenow')
    ).toBe('67');
    const [waits] = rowsOf('Waiting 1');
    within(waits!).getByLabelText('position 1');
    expect(textOf(waits)).toContain('needs 15 GiB more; train has the GPU');
    expect(textOf(waits)).toContain('about 4 s · needs');
    expect(textOf(waits)).not.toContain('2–9 s');
    expect(
      plain(within(waits!).getByTitle(/90% of waits/).title).split('\n')
    ).toEqual([
      'Waiting for 2 s.',
      '90% of waits like this end within 9 s.',
      "needs 15 GiB more; train's turn ends within 3 s"
    ]);
    const [rests] = rowsOf('Idle 1');
    expect(textOf(rests)).toContain('5 GiB on the GPU, 2 GiB in host memory');
  });

  it('does not split a right-to-left name', () => {
    const name = 'تجربة ١.ipynb';
    setUp(makeStatus({ ...makeGroup('a'), name, sessions: [] }));
    const shown = screen.getByText(name);
    expect(shown.tagName).toBe('BDI');
    expect(shown.getAttribute('dir')).toBe('auto');
  });

  it('shows this notebook, the queue, the GPUs, and one line for idle GPUs', () => {
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
    expect(regions).toEqual([
      'This notebook',
      'Running 1',
      'Waiting 1',
      'On the GPUs'
    ]);
    // The card has all about this one, so the list of idle ones is empty.
    expect(screen.queryByRole('region', { name: /^Idle/ })).toBeNull();
    const gpuOf = (index: number): HTMLElement | null =>
      screen.queryByRole('group', { name: `GPU ${index}, Simulated GPU` });
    expect(textOf(gpuOf(0))).toContain('16 of 20 GiB40% busy');
    expect(gpuOf(3)).toBeNull();
    const idle = screen.getByRole('button', { name: /7 idle GPUs/ });
    expect(textOf(idle)).toContain('105 of 140 GiB');
    fireEvent.click(idle);
    expect(textOf(gpuOf(3))).toContain('15 of 20 GiB');
    fireEvent.click(idle);
    expect(gpuOf(3)).toBeNull();
  });

  it('shows no 0% next to a notebook that has just started', () => {
    const gpus = busy.gpus.map(gpu => ({ ...gpu, utilization: 0 }));
    const { container, report } = setUp({ ...busy, gpus });
    expect(textOf(container)).not.toContain('% busy');
    report({ ...makeStatus(makeGroup('eda')), gpus });
    expect(textOf(container)).toContain('0% busy');
  });

  it('unfolds a GPU to its contents', () => {
    setUp(busy);
    const line = within(
      screen.getByRole('group', { name: 'GPU 0, Simulated GPU' })
    ).getByRole('button');
    expect(line.getAttribute('aria-expanded')).toBe('false');
    expect(screen.queryByRole('list', { name: /Contents/ })).toBeNull();
    fireEvent.click(line);
    expect(line.getAttribute('aria-expanded')).toBe('true');
    const contents = screen.getByRole('list', { name: /Contents/ });
    expect([...contents.querySelectorAll('li')].map(textOf)).toEqual([
      'train.ipynb4 GiB',
      'train.ipynb, unevictable1 GiB',
      'plots.ipynb4 GiB',
      'plots.ipynb, unevictable1 GiB',
      'eda.ipynb4 GiB',
      'eda.ipynb, unevictable1 GiB',
      'CUDA contexts1 GiB',
      'other programs2 GiB',
      'free5 GiB'
    ]);
    screen.getByRole('img', { name: /Host memory/ });
  });

  it('shows that the host has no memory left', () => {
    const host = { budget: 64 * GiB, swapped: 64 * GiB, promised: 0 };
    const { container } = setUp({ ...busy, host });
    expect(textOf(container)).toContain(
      'Host memory is full: evicted data takes 64 GiB of 64 GiB.'
    );
  });

  it('shows no end of a turn while no notebook is waiting', () => {
    setUp(makeStatus({ ...running, yields_in: null }));
    expect(screen.queryByRole('progressbar')).toBeNull();
  });

  it('shows the settings of users', () => {
    const asked = {
      class: 'background' as const,
      preferences: makePreferences({
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
      ...['frozen', 'low priority', 'kept', 'at most 20 GiB of memory'],
      ...['at least 25% of GPU time', 'at most 50% of GPU time', 'weight 2']
    ]) {
      expect(textOf(rowOf('a.ipynb'))).toContain(text);
      expect(textOf(rowOf('train.ipynb'))).toContain(text);
    }
  });

  it('shows hibernated and waking notebooks, and refusals', async () => {
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
    expect(textOf(asleep)).toContain(
      'hibernated for 10 s · wakes in about 1.2 s'
    );
    expect(within(asleep).getByText(/^hibernated/).title).toContain(
      'it uses no GPU memory'
    );
    expect(asleep.querySelector('[data-hollow]')).not.toBeNull();
    const [wakes] = rowsOf('Waiting 1');
    expect(textOf(wakes)).toContain('waking up from hibernation');
    expect(textOf(wakes)).toContain('about 0.7 s · waking up');
    within(rowOf('parks.ipynb')).getByText('Hibernating…');
    const why = within(rowOf('alone.ipynb')).getByText('not hibernated');
    expect(why.title).toContain('its process shares GPU memory');
    expect(why.tabIndex).toBe(0);
    expect(why.dataset['explanation']).toBe(why.title);
    expect(await violations(container)).toEqual([]);
  });

  it("does not count the driver's residue as another program", () => {
    const status = makeStatus(makeHibernated('asleep'));
    const [gpu] = status.gpus;
    const left = { ...gpu!, foreign: 4 * 1024 ** 2 };
    const { report, container } = setUp({ ...status, gpus: [left] });
    expect(screen.queryByRole('region', { name: 'Other programs' })).toBeNull();
    fireEvent.click(screen.getByRole('button', { name: /^Simulated GPU/ }));
    expect(textOf(container)).toContain(
      'left over from hibernated notebooks4 MiB'
    );
    report({ ...status, gpus: [{ ...left, foreign: GiB }] });
    screen.getByRole('region', { name: 'Other programs' });
    report({ ...makeStatus(), gpus: [left] });
    screen.getByRole('region', { name: 'Other programs' });
    report({ ...makeStatus(), gpus: [{ ...left, foreign: 0 }] });
    expect(screen.queryByRole('region', { name: 'Other programs' })).toBeNull();
  });

  it.each<[string, Partial<IStatus>, string]>([
    ['after how long', {}, 'after being idle for 10 min'],
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
      'is not running: it is not there.'
    ]
  ])('shows %s idle notebooks hibernate', (_, changes, said) => {
    setUp({ ...makeStatus(), ...changes });
    const mode = screen.getByRole('button', { name: /How notebooks share/ });
    expect(plain(mode.title)).toContain(said);
  });

  it('shows the memory of other programs, and kernels that do not share', () => {
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

  it('shows a notice once, and only while its notebook exists', () => {
    const stuck = (group: string, time: number): INotice => ({
      group,
      code: 'stuck',
      params: {},
      time
    });
    const notices = [stuck('eda', 1), stuck('gone', 2), stuck('eda', 3)];
    const { container } = setUp({ ...busy, notices });
    const shown = [...container.querySelectorAll('.jp-GpuShare-notice')];
    expect(shown).toHaveLength(1);
    expect(textOf(shown[0])).toMatch(/^eda.ipynb was asked to release/);
  });

  it('shows no size for a notebook without memory', () => {
    setUp(makeStatus(makeGroup('a', { gpus: [] })));
    expect(textOf(rowOf('a.ipynb'))).not.toContain('0 B');
  });

  it('shows draining GPUs and messages of administrators', () => {
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
    const gpus = screen.getAllByRole('group', { name: /^GPU \d, / });
    expect(gpus.map(gpu => textOf(gpu).includes('Draining'))).toEqual([
      false,
      true
    ]);
    expect(
      [...container.querySelectorAll('.jp-GpuShare-notice')].map(textOf)
    ).toEqual([
      'Maintenance: stops at 18:00',
      'A process owned by ada is using 2 GiB of GPU memory that gpushare cannot account for'
    ]);
  });

  it('distinguishes kernels that do not share by their folders', () => {
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
    expect(textOf(rows[0])).toMatch(/^x\/b\.ipynbSharing/);
    expect(textOf(rows[1])).toMatch(/^y\/b\.ipynb and c\.ipynbSharing/);
  });

  it('shows the first of many rows, and all on request', () => {
    const groups = Array.from({ length: 40 }, (_, index) =>
      makeGroup(`n${index}`, { since: 90 - index })
    );
    setUp(makeStatus(...groups));
    expect(rowsOf('Idle 40')).toHaveLength(8);
    const more = screen.getByText('Show all 40');
    expect(more.getAttribute('aria-expanded')).toBe('false');
    fireEvent.click(more);
    expect(rowsOf('Idle 40')).toHaveLength(40);
    fireEvent.click(screen.getByText('Show fewer'));
    expect(rowsOf('Idle 40')).toHaveLength(8);
  });

  it('shows the place of the active notebook among many', () => {
    const groups = Array.from({ length: 40 }, (_, index) =>
      makeWaiting(`n${index}`, index + 1)
    );
    setUp(makeStatus(...groups), 'n30');
    const rows = rowsOf('Waiting 40');
    expect(rows).toHaveLength(9);
    expect(textOf(rows[8])).toBe('31n30.ipynbThis notebook');
    expect(rows[8]?.getAttribute('aria-current')).toBe('true');
  });

  it('numbers several GPUs, and names how they are shared once', () => {
    const status = makeStatus(running);
    status.gpus.push({ ...status.gpus[0]!, uuid: 'GPU-1', index: 1 });
    setUp(status);
    const second = screen.getByRole('group', {
      name: 'GPU 1, Simulated GPU'
    });
    expect(textOf(second)).toContain('15 of 20 GiB');
    expect(screen.getAllByText('automatic')).toHaveLength(1);
    expect(textOf(rowOf('train.ipynb'))).toContain(
      'turn ends within 5 s · GPU 0'
    );
  });

  it.each([
    ['no_driver', 'No NVIDIA driver was found', 'not shared'],
    ['not_installed', 'The NVIDIA driver cannot be used', 'not shared'],
    ['bad_configuration', 'Invalid configuration', 'not shared'],
    ['disabled', 'GPU sharing is turned off', 'not shared'],
    ['starting', 'Starting', 'starting'],
    ['not_started', 'GPU sharing did not start', 'not shared'],
    ['scheduler_unreachable', 'The scheduler is not responding', 'not shared'],
    ['remote_kernels', 'Kernels run on another machine', 'not shared'],
    [
      'server_extension_missing',
      'The server extension is not running',
      'not shared'
    ],
    ['forbidden', 'You do not have permission to see the GPU', 'not shared'],
    [
      'server_unreachable',
      'The Jupyter server is not responding',
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

  it('has the whole text of a long name, although it is drawn in parts', () => {
    const name = 'segmentation_of_everything_version_12.ipynb';
    setUp(makeStatus(makeGroup('a', { name })));
    const [row] = rowsOf('Idle 1');
    expect(textOf(row)).toContain(name);
    within(row as HTMLElement).getByText('on_12');
    within(row as HTMLElement).getByText('.ipynb');
  });

  it('shows that it is loading until the first answer', () => {
    const { report } = setUp(null);
    screen.getByText('Loading…');
    report(busy);
    rowOf('train.ipynb');
    expect(screen.queryByText('Loading…')).toBeNull();
  });

  it('shows an error message after a bug', () => {
    const quiet = jest.spyOn(console, 'error').mockImplementation();
    try {
      const broken = { ...busy, notices: null } as unknown as IStatus;
      const { report } = setUp(broken);
      expect(textOf(screen.getByRole('alert'))).toContain(
        'The panel could not be displayed'
      );
      report(busy);
      fireEvent.click(screen.getByRole('button', { name: 'Try again' }));
      expect(textOf(rowOf('train.ipynb'))).toContain('turn ends within 5 s');
      expect(screen.queryByRole('alert')).toBeNull();
    } finally {
      quiet.mockRestore();
    }
  });

  it('updates times without a new status', async () => {
    jest.useFakeTimers();
    try {
      const { model } = setUp(busy);
      await act(async () => {
        model.now = 102;
        await jest.advanceTimersByTimeAsync(1000);
      });
      expect(textOf(rowOf('train.ipynb'))).toContain('turn ends within 3 s');
      expect(textOf(rowOf('plots.ipynb'))).toContain('about 2 s');
    } finally {
      jest.useRealTimers();
    }
  });

  it('opens the settings', () => {
    const { commands } = setUp(busy);
    fireEvent.click(
      screen.getByRole('button', { name: 'GPU sharing settings' })
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
  ])('has no accessibility problems: %s', async (_, status) => {
    const { container } = setUp(status, 'plots');
    if (status.timeline) {
      await openTable();
    }
    expect(await violations(container)).toEqual([]);
  });
});
