// SPDX-License-Identifier: BSD-3-Clause
import {
  GiB,
  makeGroup,
  makeSleep,
  makeWaking,
  makePreferences,
  makePrefetch,
  plain,
  trans
} from '../../__tests__/fixtures';
import type { IGroup, ISleep, State } from '../../core/status';
import { availabilityText, unsharedText } from '../availability';
import { isolate, shorten } from '../mentions';
import { noticeText } from '../notices';
import { reasonText, whyText } from '../reasons';
import type { IWording } from '../short';
import { estimateText, placeText, waitText } from '../short';
import {
  cellText,
  classText,
  freedText,
  boundText,
  memoryText,
  tiersText,
  prefetchText,
  sleepTitle,
  stateText,
  waitTitle,
  wakeText,
  preferencesText
} from '../states';

const wording: IWording = { trans, units: 'binary', names: new Map() };

describe('a name in a sentence', () => {
  it('is isolated if it is written from right to left', () => {
    expect(isolate('train.ipynb')).toBe('train.ipynb');
    expect(isolate('تجربة 2')).toBe('\u2068تجربة 2\u2069');
    expect(isolate('ניסוי.ipynb')).toBe('\u2068ניסוי.ipynb\u2069');
    const reason = {
      code: 'behind',
      params: { ahead: 'h', ahead_name: 'ניסוי.ipynb' }
    };
    expect(reasonText(reason, wording)).toBe(
      '\u2068ניסוי\u2069 is ahead in the queue'
    );
  });

  it('is not cut in the middle of a character', () => {
    expect(shorten('😀'.repeat(40), 36)).toBe(
      `${'😀'.repeat(24)}…${'😀'.repeat(11)}`
    );
  });
});

describe('waitTitle', () => {
  const waiting = makeGroup('a', { state: 'waiting', since: 92 });
  const estimate = { seconds: 11, low: 2, high: 20 };
  const bound = '90% of waits like this end within';

  it.each([
    ['Waiting for 10 s.', waiting, 102],
    [`Waiting for 10 s.\n${bound} 18 s.`, { ...waiting, estimate }, 102],
    ['Waiting for 40 s.', { ...waiting, estimate }, 132]
  ])('says %s', (expected, group, now) => {
    expect(plain(waitTitle(group, trans, now))).toBe(expected);
  });
});

describe('a reason in a row, which has a time of its own', () => {
  const holder = { holder: 'h', holder_name: 'train.ipynb' };

  it.each([
    ['needs_memory', { ...holder, need: 1, lack: 1, yields_in: 5 }],
    ['serialised', { ...holder, yields_in: 5 }],
    ['draining', { ...holder, for: 5 }],
    ['draining', { ...holder, kernel: 'k', kernel_for: 5 }],
    ['residency', { ...holder, until_in: 5 }],
    ['kept', { ...holder, lack: 1, until_in: 5 }],
    ['exclusive', { ...holder, until_in: 5 }],
    ['limited', { whose: 'user:ada', until_in: 5 }],
    ['quota_gpus', { ...holder, gpus: 1, own: 1, yields_in: 5 }],
    ['thrashing', { ...holder, yields_in: 5 }]
  ])('has no times for %s', (code, params) => {
    const seconds = /\d\s?s\b/;
    expect(plain(reasonText({ code, params }, wording, null))).not.toMatch(
      seconds
    );
    expect(plain(reasonText({ code, params }, wording, 0))).toMatch(seconds);
  });
});

describe('availabilityText', () => {
  it('is null when everything works', () => {
    expect(availabilityText({ code: 'ok', params: {} }, trans)).toBeNull();
  });

  it.each([
    ['no_driver', {}, 'GPUSHARE_SIM=1 jupyter lab'],
    ['scheduler_unreachable', { error: 'no answer' }, 'gpushare doctor'],
    ['not_started', { error: 'jupyter_server is too old' }, 'gpushare doctor'],
    [
      'server_extension_missing',
      {},
      'jupyter server extension enable jupyter_gpushare'
    ],
    [
      'provisioner_not_default',
      { provisioner: 'local-provisioner' },
      'c.KernelProvisionerFactory.default_provisioner_name = "gpushare"'
    ]
  ])('names a remedy for %s', (code, params, command) => {
    const explanation = availabilityText({ code, params }, trans);
    expect(explanation?.command).toBe(command);
    expect(explanation?.text).not.toContain('%');
    expect(explanation?.text).not.toContain('undefined');
  });

  it('shows the message of an unknown code', () => {
    const explanation = availabilityText(
      { code: 'on_strike', params: { error: 'No.' } },
      trans
    );
    expect(explanation?.text).toBe('No.');
  });
});

describe('memoryText', () => {
  it('describes where the memory is', () => {
    const text = (resident: number, swapped: number, disk: number): string =>
      plain(
        memoryText(
          {
            resident: resident * GiB,
            swapped: swapped * GiB,
            disk: disk * GiB
          },
          wording
        )
      );
    expect(text(0, 0, 0)).toBe('no GPU memory');
    expect(text(1, 0, 0)).toBe('all on the GPU');
    expect(text(0, 1, 0)).toBe('all in host memory');
    expect(text(0, 0, 1)).toBe('all on disk');
    expect(text(2, 1, 0)).toBe('2 GiB on the GPU, 1 GiB in host memory');
    expect(text(2, 1, 3)).toBe(
      '2 GiB on the GPU, 1 GiB in host memory, 3 GiB on disk'
    );
    expect(text(0, 1, 3)).toBe('1 GiB in host memory, 3 GiB on disk');
  });

  it('names what is clean and shared only if there is any', () => {
    const text = (clean: number, shared: number): string =>
      plain(tiersText({ clean: clean * GiB, shared: shared * GiB }, wording));
    expect(text(0, 0)).toBe('');
    expect(text(3, 0)).toBe('unchanged since its last copy: 3 GiB');
    expect(text(3, 2)).toBe(
      'unchanged since its last copy: 3 GiB · shared in host memory with other notebooks of the same user: 2 GiB'
    );
  });
});

describe('noticeText', () => {
  it('explains a kernel that does not share', () => {
    expect(
      noticeText(
        'a.ipynb',
        { code: 'started_without_interposer', params: {} },
        trans
      )
    ).toContain('Restart the kernel');
  });

  it('names the notebook that does not respond', () => {
    expect(
      noticeText('a.ipynb', { code: 'stuck', params: {} }, trans)
    ).toContain('a.ipynb was asked to release the GPU and has not responded');
  });

  it('names both kernels of a notebook', () => {
    const params = {
      path: 'a.ipynb',
      first: '1234567890',
      second: 'abcdefghij'
    };
    expect(noticeText('', { code: 'second_kernel', params }, trans)).toContain(
      'a.ipynb has two kernels, 12345678 and abcdefgh.'
    );
  });

  it('reports that a policy failed', () => {
    const params = { policy: 'ours', instead: 'burst', error: 'No.' };
    expect(noticeText('', { code: 'policy_failed', params }, trans)).toBe(
      'The policy "ours" failed and was replaced by "burst": No.'
    );
  });
});

describe('unsharedText', () => {
  it.each([
    ['other_provisioner', { provisioner: 'slurm' }, '"slurm"'],
    ['opted_out', {}, 'GPUSHARE_DISABLE=1'],
    ['started_without_interposer', { status: 127 }, 'Restart the kernel'],
    ['started_before', {}, 'Restart the kernel'],
    ['on_strike', {}, 'on_strike']
  ])('names a remedy for %s', (code, params, remedy) => {
    const { title, text } = unsharedText('a.ipynb', { code, params }, trans);
    expect(title).toBe('a.ipynb is not sharing the GPU');
    expect(text).toContain(remedy);
  });
});

describe('the wait', () => {
  it.each([
    [1, '1st'],
    [2, '2nd'],
    [3, '3rd'],
    [4, '4th'],
    [11, '11th'],
    [22, '22nd'],
    [112, '112th']
  ])('words place %d as %s', (position, expected) => {
    expect(placeText(position, trans)).toBe(expected);
  });

  it('cuts a long name in a sentence in its middle', () => {
    const holder_name = `deep/${'very-'.repeat(20)}long.ipynb`;
    const reason = { code: 'behind', params: { ahead_name: holder_name } };
    expect(reasonText(reason, wording)).toBe(
      'very-very-very-very-very…y-very-long is ahead in the queue'
    );
  });

  it('counts down the estimate and its bound', () => {
    const estimate = { seconds: 4, low: 2, high: 9 };
    expect(plain(estimateText(estimate, trans))).toBe('about 4 s');
    expect(plain(estimateText(estimate, trans, 1))).toBe('about 3 s');
    expect(estimateText(estimate, trans, 4)).toBe('any moment');
    expect(estimateText(estimate, trans, 11)).toBe('longer than expected');
    expect(plain(boundText(estimate, trans))).toBe(
      '90% of waits like this end within 9 s.'
    );
    expect(plain(boundText(estimate, trans, 5))).toBe(
      '90% of waits like this end within 4 s.'
    );
    expect(boundText(estimate, trans, 9)).toBe('');
  });

  it('shows how long a cell waited and ran', () => {
    expect(plain(cellText({ waited: 2.13, ran: 0.8 }, trans))).toBe(
      'waited 2.1 s, ran 0.8 s'
    );
    expect(plain(cellText({ waited: 0, ran: 75 }, trans))).toBe(
      'waited 0.0 s, ran 1 min 15 s'
    );
  });
});

describe('stateText', () => {
  const cell = { msg_id: 'm', since: 88, waited: 0, ran: 0 };

  it('counts from the time of the message that brought the group', () => {
    const group = makeGroup('a', { state: 'running', cell, yields_in: 5 });
    expect(plain(stateText(group, trans, 102))).toBe(
      'cell running for 14 s · turn ends within 3 s'
    );
  });

  it('distinguishes a cell that runs without the GPU from a finished one', () => {
    expect(plain(stateText(makeGroup('a', { cell }), trans, 100))).toBe(
      'cell running for 12 s, not using the GPU'
    );
    expect(plain(stateText(makeGroup('a'), trans, 100))).toBe('idle for 10 s');
  });

  it.each<[string, number, Partial<IGroup>]>([
    ['idle', 90.9, {}],
    ['idle for 1 s', 91, {}],
    ['idle lease', 90.9, { state: 'idle_lease' }],
    ['idle lease for 1 s', 91, { state: 'idle_lease' }]
  ])('has no time before a second has passed: %s', (said, now, changes) => {
    const group = makeGroup('a', changes);
    expect(plain(stateText(group, trans, now))).toBe(said);
  });

  it.each<[string, Partial<IGroup>]>([
    [
      'getting ready: evicting idle memory',
      {
        state: 'prefetching',
        prefetch: makePrefetch({ stage: 'evicting' })
      }
    ],
    [
      'getting ready: waking up',
      { state: 'prefetching', prefetch: makePrefetch({ stage: 'waking' }) }
    ],
    [
      'getting ready: restoring its memory',
      { state: 'prefetching', prefetch: makePrefetch() }
    ],
    ['getting ready', { state: 'prefetching' }],
    [
      'cell running for 12 s · getting ready: restoring its memory',
      { state: 'prefetching', prefetch: makePrefetch(), cell }
    ],
    [
      'ready',
      { state: 'idle_lease', prefetch: makePrefetch({ stage: 'ready' }) }
    ],
    ['ready', { prefetch: makePrefetch({ stage: 'ready' }) }],
    [
      'cell running for 12 s · ready',
      { state: 'idle_lease', prefetch: makePrefetch({ stage: 'ready' }), cell }
    ]
  ])('of a notebook that gets ready: %s', (said, changes) => {
    expect(plain(stateText(makeGroup('a', changes), trans, 100))).toBe(said);
  });
});

describe('prefetchText', () => {
  const often = 'In 80% of cases, GPU work follows within a minute.';

  it.each([
    ['focus', `Its user has returned to it. ${often}`],
    ['typing', `Its user is typing in it. ${often}`],
    ['queued', `More of its cells are queued. ${often}`],
    ['cell', `Its cell has begun. ${often}`],
    ['ready', 'Its user asked to get it ready.'],
    ['of a newer scheduler', '']
  ])('explains the hint %s', (hint, said) => {
    expect(prefetchText(makePrefetch({ hint }), trans)).toBe(said);
  });
});

describe('hibernation', () => {
  const asleep = (changes: Partial<ISleep>, state: State = 'idle'): string =>
    plain(
      sleepTitle(
        makeGroup('a', { state, hibernation: makeSleep(changes) }),
        trans
      )
    );

  it('explains hibernation and the time to wake', () => {
    expect(asleep({}, 'hibernated')).toBe(
      'Hibernated: it uses no GPU memory. Its next cell wakes it in about 1.2 s.'
    );
    expect(asleep({ estimate: null }, 'hibernated')).toBe(
      'Hibernated: it uses no GPU memory. Its next cell wakes it.'
    );
    expect(plain(freedText(makeSleep(), wording))).toBe(
      'freed 719 MiB of GPU memory'
    );
    expect(plain(wakeText(makeSleep(), trans))).toBe('wakes in about 1.2 s');
    expect(wakeText(makeSleep({ estimate: null }), trans)).toBe('');
    expect(asleep({ state: 'parking' })).toBe('Hibernating.');
    expect(sleepTitle(makeGroup('a'), trans)).toBe('');
  });

  it('explains refusals, except those that the user has asked for', () => {
    const refused = (code: string, text = ''): string =>
      asleep({ state: 'refused', code, text });
    expect(refused('gpus', 'its process uses several GPUs')).toBe(
      'Not hibernated: its process uses several GPUs.'
    );
    expect(refused('failed', 'CUDA_ERROR_UNKNOWN')).toBe(
      'Not hibernated: the driver could not checkpoint or restore its process: CUDA_ERROR_UNKNOWN.'
    );
    expect(refused('of_a_newer', 'it is a Tuesday')).toBe(
      'Not hibernated: it is a Tuesday.'
    );
    expect(refused('of_a_newer')).toBe(
      'Not hibernated: the scheduler reported: of_a_newer.'
    );
    expect(refused('off')).toBe('');
    expect(refused('nothing', 'it has no CUDA context')).toBe('');
    const kept = makeGroup('a', {
      preferences: makePreferences({ keep: true }),
      hibernation: makeSleep({ state: 'refused', code: 'busy' })
    });
    expect(sleepTitle(kept, trans)).toBe('');
  });

  it('counts down until it is awake', () => {
    const waking = makeWaking('a');
    const text = (now: number): string => plain(waitText(waking, trans, now));
    expect(text(100)).toBe('waking, about 0.7 s');
    expect(text(101)).toBe('waking, any moment');
    expect(text(110)).toBe('waking, longer than expected');
    expect(waitText({ ...waking, reason: null }, trans, 100)).toBe('waking');
    // It waits for room: then the scheduler says how long that takes.
    const estimate = { seconds: 5, low: 2, high: 9 };
    expect(plain(waitText({ ...waking, estimate }, trans, 101))).toBe(
      'waking, about 4 s'
    );
  });

  it('explains why a notebook is not awake yet', () => {
    const waking = makeWaking('a');
    const woken = 'waking up from hibernation';
    expect(whyText(waking, wording)).toBe(woken);
    expect(whyText({ ...waking, reason: null }, wording)).toBe(woken);
    const reason = { code: 'making_room', params: { lack: GiB } };
    expect(plain(whyText({ ...waking, reason }, wording))).toBe(
      'making room by evicting 1 GiB'
    );
  });
});

describe('preferencesText', () => {
  it('names the settings that differ from the defaults', () => {
    expect(preferencesText(makePreferences(), wording)).toEqual([]);
    const preferences = makePreferences({
      keep: true,
      memory: 20 * GiB,
      request: 0.25,
      limit: 0.5,
      weight: 2
    });
    expect(preferencesText(preferences, wording).map(plain)).toEqual([
      'kept on the GPU',
      'at most 20 GiB of memory',
      'at least 25% of GPU time',
      'at most 50% of GPU time',
      'weight 2'
    ]);
  });
});

describe('classText', () => {
  const cell = { msg_id: 'm', waited: 0, ran: 12 };

  it.each([
    ['auto', 'interactive', {}, null],
    ['interactive', 'interactive', {}, 'interactive (set manually)'],
    ['background', 'background', {}, 'low priority (set manually)'],
    ['agent', 'agent', {}, 'agent (set manually)'],
    [
      'auto',
      'agent',
      {},
      'agent: a program ran its last cell; it is interactive again when a person runs one'
    ],
    [
      'auto',
      'background',
      { cell: { ...cell, since: 80 } },
      'low priority: its cell has used 12 s of GPU time; the next cell is interactive again'
    ],
    [
      'auto',
      'background',
      { last_cell: cell },
      'low priority: its cell has used 12 s of GPU time; the next cell is interactive again'
    ],
    [
      'auto',
      'background',
      {},
      'low priority: it has been using the GPU for a long time; it becomes interactive again after a pause'
    ]
  ] as const)('says of %s, %s', (priority, class_, changes, expected) => {
    const preferences = makePreferences({ priority });
    const group = makeGroup('a', { ...changes, preferences, class: class_ });
    const text = classText(group, trans);
    expect(text && plain(text)).toBe(expected);
  });
});
