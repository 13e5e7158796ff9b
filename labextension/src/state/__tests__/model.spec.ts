// SPDX-License-Identifier: BSD-3-Clause
import type { Event } from '@jupyterlab/services';

import { FakeServer } from './server';
import { GpuShareModel } from '../model';
import {
  makeGroup,
  makeHibernated,
  makePrefetch,
  makeSpan,
  makeStatus,
  makeTimeline,
  makeWaking,
  PREFERENCES,
  trans
} from '../../__tests__/fixtures';

let server: FakeServer;
let model: GpuShareModel;
let changes: number;

async function pass(seconds: number): Promise<void> {
  await jest.advanceTimersByTimeAsync(1000 * seconds);
}

function hide(hidden: boolean): void {
  Object.defineProperty(document, 'hidden', {
    configurable: true,
    value: hidden
  });
  document.dispatchEvent(new window.Event('visibilitychange'));
}

beforeEach(() => {
  jest.useFakeTimers();
  server = new FakeServer();
  model = new GpuShareModel({
    serverSettings: server.settings,
    events: { stream: server.stream } as unknown as Event.IManager,
    preferences: PREFERENCES,
    trans
  });
  changes = 0;
  model.changed.connect(() => changes++);
});

afterEach(() => {
  model.dispose();
  hide(false);
  jest.useRealTimers();
});

describe('looking', () => {
  it('requests the whole state once, below the base URL, as a watcher', async () => {
    expect(server.requests).toEqual([]);
    model.look();
    await pass(0.1);
    expect(server.requests.map(({ path }) => path)).toEqual([
      expect.stringMatching(/^gpushare\/api\/status\?watch=[0-9a-f-]{36}$/)
    ]);
    expect(model.status?.groups.map(({ id }) => id)).toEqual(['a', 'b']);
    expect(model.groupOf('b')?.id).toBe('b');
    expect(model.groupOf(null)).toBeNull();
  });

  it('shares one registration among all views until the last one is closed', async () => {
    const first = model.look();
    const second = model.look();
    await pass(0.1);
    first.dispose();
    await pass(10);
    expect(server.requests).toHaveLength(1);
    second.dispose();
    await pass(10);
    const id = server.requests[0]?.path.split('=')[1];
    expect(server.requests.slice(1)).toEqual([
      { method: 'DELETE', path: `gpushare/api/watchers/${id}`, body: null }
    ]);
    server.delta(2);
    await pass(60);
    expect(server.requests).toHaveLength(2);
  });

  it('keeps the registration while a panel is moved', async () => {
    model.look().dispose();
    model.look();
    await pass(10);
    expect(server.requests).toHaveLength(1);
  });

  it('sends no requests while the page is hidden', async () => {
    model.look();
    await pass(0.1);
    hide(true);
    await pass(2);
    expect(server.requests[1]?.method).toBe('DELETE');
    server.delta(9);
    await pass(300);
    expect(server.requests).toHaveLength(2);
    hide(false);
    await pass(0.1);
    expect(server.asked).toBe(2);
  });

  it('requests the timeline only if a view needs it', async () => {
    model.look();
    await pass(0.1);
    const look = model.look({ timeline: true });
    await pass(0.1);
    expect(server.requests[1]?.path).toMatch(/&timeline=1$/);
    look.dispose();
    await pass(20);
    expect(server.requests[2]?.path).not.toMatch(/timeline/);
  });

  it('keeps as much of the timeline as the longest view needs', async () => {
    server.status.time = 5000;
    server.status.timeline = makeTimeline(
      makeSpan(1, 'a', { start: 3300, end: 3400 }),
      makeSpan(2, 'a', { start: 4900, end: 4990 })
    );
    const spans = (): number | undefined =>
      model.status?.timeline?.spans.length;
    model.look({ timeline: true });
    await pass(0.1);
    expect(spans()).toBe(1);
    const look = model.look({ timeline: true, minutes: 30 });
    await pass(0.1);
    expect(server.asked).toBe(2);
    expect(spans()).toBe(2);
    look.dispose();
    model.refresh();
    await pass(0.1);
    expect(spans()).toBe(1);
    // What is there already needs no request.
    model.look({ timeline: true, minutes: 1 });
    await pass(0.1);
    expect(server.asked).toBe(3);
  });
});

describe('deltas', () => {
  beforeEach(async () => {
    server.status.timeline = makeTimeline(makeSpan(1, 'a', { end: null }));
    model.look();
    await pass(0.1);
    changes = 0;
  });

  it('change their members, and leave the rest the same objects', async () => {
    const [before] = model.status?.groups ?? [];
    server.delta(2, {
      groups: [makeGroup('b', { state: 'running' }), makeGroup('c')],
      set: { notices: [] }
    });
    server.delta(3, { removed: ['c'] });
    await pass(0.1);
    expect(model.status?.sequence).toBe(3);
    expect(model.status?.groups.map(({ id }) => id)).toEqual(['a', 'b']);
    expect(model.status?.groups[0]).toBe(before);
    expect(model.status?.groups[1]).toMatchObject({
      state: 'running',
      at: 102
    });
    expect(server.asked).toBe(1);
  });

  it('bring groups that get ready, and whether any do', async () => {
    const settings = model.status?.settings && {
      ...model.status.settings,
      prefetch: false
    };
    const prefetch = makePrefetch();
    server.delta(2, {
      groups: [makeGroup('b', { state: 'prefetching', prefetch })],
      set: { settings }
    });
    await pass(0.1);
    expect(model.status?.settings?.prefetch).toBe(false);
    expect(model.groupOf('b')?.prefetch).toEqual(prefetch);
    expect(server.asked).toBe(1);
  });

  it('bring hibernated groups, and whether hibernation is possible', async () => {
    const hibernation = { able: false, code: 'helper', text: '', moves: false };
    server.delta(2, {
      groups: [makeHibernated('b'), makeWaking('c')],
      set: { hibernation }
    });
    await pass(0.1);
    expect(model.status?.hibernation).toEqual(hibernation);
    expect(model.groupOf('b')?.hibernation?.frees).toBe(719 * 2 ** 20);
    expect(model.groupOf('c')?.state).toBe('waking');
    expect(server.asked).toBe(1);
  });

  it('cause one signal for each frame', async () => {
    for (let sequence = 2; sequence < 12; sequence++) {
      server.delta(sequence);
    }
    await pass(0.1);
    expect(changes).toBe(1);
    expect(model.status?.sequence).toBe(11);
  });

  it('are fetched a few times a second at most', async () => {
    for (let sequence = 2; sequence < 42; sequence++) {
      server.delta(sequence);
      await pass(0.1);
    }
    await pass(0.5);
    expect(model.status?.sequence).toBe(41);
    expect(server.fetched).toBeLessThanOrEqual(4 * 4 + 2);
    expect(server.asked).toBe(1);
  });

  it('are not fetched if the announced number is known', async () => {
    for (let time = 0; time < 40; time += 5) {
      await pass(5);
      server.push({ stream: 'stream', sequence: 1 });
    }
    await pass(3);
    expect(server.fetched).toBe(0);
    expect(model.status?.sequence).toBe(1);
  });

  it('merge spans by their ids, append samples, and drop old ones', async () => {
    server.delta(2, {
      spans: [makeSpan(1, 'a', { end: 101 }), makeSpan(2, 'b', { end: null })],
      samples: [[101, 'GPU-0', 50]]
    });
    await pass(0.1);
    expect(model.status?.timeline?.spans).toMatchObject([
      { id: 1, end: 101 },
      { id: 2, end: null }
    ]);
    expect(model.status?.timeline?.samples).toHaveLength(1);
    server.delta(3, { time: 102 + 60 * PREFERENCES.history });
    await pass(0.3);
    expect(model.status?.timeline?.spans).toMatchObject([{ id: 2 }]);
    expect(model.status?.timeline?.samples).toEqual([]);
    expect(model.status?.timeline?.start).toBe(102);
  });

  it.each([
    ['a gap', { deltas: [], sequence: 3 }],
    ['another server process', { stream: 'other' }],
    ['what is no delta', { deltas: 'all' }],
    ['a group without sense', { deltas: [{ groups: [{ id: 'a' }] }] }],
    ['a number that is none', { sequence: null }]
  ])(
    'are replaced by the whole state after an answer with %s',
    async (_, wrong) => {
      server.changes = () =>
        server.ok({ stream: 'stream', sequence: 2, deltas: [], ...wrong });
      server.delta(2);
      await pass(0.1);
      expect(server.asked).toBe(2);
      expect(model.status?.sequence).toBe(1);
    }
  );

  it.each([
    ['another server process', { stream: 'other' }],
    ['no sense', { stream: 7 }],
    ['a number that is none', { sequence: null }]
  ])(
    'are replaced by the whole state after an announcement of %s',
    async (_, wrong) => {
      server.push({ stream: 'stream', sequence: 2, ...wrong });
      await pass(0.1);
      expect(server.asked).toBe(2);
    }
  );

  it.each([403, 404, 500])(
    'are replaced by the whole state after a refusal with %s',
    async status => {
      server.changes = () => server.refuse(status);
      server.delta(2);
      await pass(0.1);
      expect(server.asked).toBe(2);
    }
  );

  it('are ignored if they are old, like other events', async () => {
    server.delta(1, { removed: ['a'] });
    server.push({ schema_id: 'https://example.org/other', sequence: 7 });
    await pass(0.1);
    expect(server.asked).toBe(1);
    expect(changes).toBe(0);
  });

  it('cause limited requests if they are announced but do not exist', async () => {
    for (let time = 0; time < 100; time++) {
      server.push({ stream: 'stream', sequence: 1000 + time });
      await pass(0.05);
    }
    expect(server.asked + server.fetched).toBeLessThanOrEqual(1 + 6);
  });

  it('cause limited requests if other servers announce them', async () => {
    for (let time = 0; time < 100; time++) {
      server.push({ stream: 'other', sequence: 1000 + time });
      await pass(0.05);
    }
    expect(server.asked + server.fetched).toBeLessThanOrEqual(1 + 6);
  });

  it('cause limited requests while the server fails', async () => {
    server.answer = () => server.refuse(500, 'Oh.');
    server.changes = () => server.refuse(500, 'Oh.');
    for (let time = 0; time < 600; time++) {
      server.delta(1000 + time);
      await pass(0.1);
    }
    expect(server.asked).toBeLessThanOrEqual(1 + 8);
    expect(server.fetched).toBeLessThanOrEqual(2);
  });

  it('cause no requests while no view is visible', async () => {
    let send: (response: Response) => void = () => undefined;
    server.answer = ({ method }) =>
      method === 'DELETE'
        ? server.ok({})
        : new Promise(resolve => (send = resolve));
    model.refresh();
    server.delta(9);
    hide(true);
    await pass(2);
    send(await server.ok(server.status));
    await pass(60);
    expect(server.asked).toBe(2);
  });

  it('are applied after a status that they overtake', async () => {
    let send: (response: Response) => void = () => undefined;
    server.answer = () => new Promise(resolve => (send = resolve));
    model.refresh();
    server.delta(2, { removed: ['a'] });
    server.delta(3, { removed: ['b'] });
    // The answer takes in the first of the two.
    send(
      await server.ok({ ...makeStatus(makeGroup('b')), sequence: 2, time: 102 })
    );
    await pass(0.3);
    expect(model.status?.sequence).toBe(3);
    expect(model.status?.groups).toEqual([]);
    expect(server.asked).toBe(2);
  });
});

describe('the connection', () => {
  it('is checked after 15 s of silence, and every 5 s until an event arrives', async () => {
    model.look();
    await pass(14);
    expect(server.asked).toBe(1);
    await pass(1.5);
    expect(server.asked).toBe(2);
    await pass(10.5);
    expect(server.asked).toBe(4);
    server.delta(2);
    await pass(14);
    expect(server.asked).toBe(4);
  });

  it('is renewed before the registration expires', async () => {
    model.look();
    await pass(0.1);
    for (let sequence = 2; sequence < 14; sequence++) {
      server.delta(sequence);
      server.status.sequence = sequence;
      await pass(5);
    }
    expect(server.asked).toBe(2);
  });

  it('keeps the last state when lost, and is retried less and less often', async () => {
    model.look();
    await pass(0.1);
    server.answer = () => Promise.reject(new TypeError('Failed to fetch'));
    model.refresh();
    await pass(0.1);
    expect(model.status?.availability.code).toBe('server_unreachable');
    expect(model.status?.groups).toHaveLength(2);
    const { now } = model;
    await pass(120);
    // After 5, 10, 20, 30, 30 s.
    expect(server.asked).toBe(2 + 5);
    expect(model.now).toBe(now);
    server.answer = () => server.ok({ ...server.status, time: 300 });
    window.dispatchEvent(new window.Event('online'));
    await pass(0.1);
    expect(model.status?.availability.code).toBe('ok');
    expect(model.now).toBeGreaterThanOrEqual(300);
  });

  it('times out if the server never answers', async () => {
    server.answer = ({ signal }) =>
      new Promise((_, reject) =>
        signal?.addEventListener('abort', () => reject(new Error('aborted')))
      );
    model.look();
    await pass(11);
    expect(model.status?.availability.code).toBe('server_unreachable');
    await pass(6);
    expect(server.asked).toBe(2);
  });

  it.each([
    [403, 'forbidden'],
    [404, 'server_extension_missing'],
    [503, 'server_unreachable'],
    [500, 'error']
  ])('with status %d is %s', async (status, code) => {
    server.answer = () => server.refuse(status, 'Oh.');
    model.look();
    await pass(0.1);
    expect(model.status?.availability.code).toBe(code);
    expect(model.status?.groups).toEqual([]);
  });

  it('reports a server of another version', async () => {
    server.answer = () => server.ok({ hint: 3, groups: [] });
    model.look();
    await pass(0.1);
    expect(model.status?.availability.code).toBe('other_version');
  });
});

describe('the whole state', () => {
  it('keeps unchanged parts the same objects', async () => {
    model.look();
    await pass(0.1);
    const before = model.status;
    server.status = {
      ...makeStatus(makeGroup('a'), makeGroup('b', { state: 'running' })),
      time: 105
    };
    model.refresh();
    await pass(0.1);
    expect(model.status).not.toBe(before);
    expect(model.status?.gpus[0]).toBe(before?.gpus[0]);
    expect(model.status?.groups[0]).toBe(before?.groups[0]);
    expect(model.status?.groups[1]?.state).toBe('running');
  });
});

describe('an action', () => {
  beforeEach(async () => {
    model.look();
    await pass(0.1);
    server.requests.length = 0;
  });

  it('is posted, and then the state is requested', async () => {
    await model.act({ op: 'adjust', group: 'a', keep: true });
    await pass(0.1);
    expect(server.requests[0]).toEqual({
      method: 'POST',
      path: 'gpushare/api/adjust',
      body: { group: 'a', keep: true }
    });
    expect(server.asked).toBe(1);
  });

  it("fails with the server's message", async () => {
    server.answer = () => server.refuse(409, 'It is gone.');
    await expect(model.act({ op: 'release', group: 'a' })).rejects.toThrow(
      'It is gone.'
    );
  });

  it('fails with a message when the connection is lost', async () => {
    server.answer = ({ signal }) =>
      new Promise((_, reject) =>
        signal?.addEventListener('abort', () => reject(new Error('aborted')))
      );
    const failed = jest.fn();
    model.act({ op: 'release', group: 'a' }).catch(failed);
    await pass(11);
    expect(failed).toHaveBeenCalled();
  });

  it('fails with a message when the server does not respond', async () => {
    server.answer = () => Promise.reject(new TypeError('Failed to fetch'));
    await expect(model.act({ op: 'release', group: 'a' })).rejects.toThrow(
      'The Jupyter server is not responding.'
    );
  });
});

describe('other requests', () => {
  it('report the active document', async () => {
    model.look();
    await pass(0.1);
    const page = server.requests[0]?.path.split('watch=')[1];
    server.requests.length = 0;
    model.focus('a');
    model.focus('a', 'typing');
    model.focus(null);
    await pass(0.1);
    expect(server.requests).toEqual(
      [
        { kernel_id: 'a' },
        { kernel_id: 'a', hint: 'typing' },
        { kernel_id: null }
      ].map(body => ({
        method: 'POST',
        path: 'gpushare/api/focus',
        body: { page, ...body }
      }))
    );
  });

  it("ask for the explanation of a group's position", async () => {
    server.answer = () => server.ok({ ahead: [] });
    expect(await model.explain('a&b')).toEqual({ ahead: [] });
    expect(server.requests.map(({ path }) => path)).toEqual([
      'gpushare/api/explain?group=a%26b'
    ]);
  });

  it('fail silently', async () => {
    for (const answer of [
      () => server.refuse(404),
      () => Promise.reject(new TypeError('Failed to fetch'))
    ]) {
      server.answer = answer;
      model.focus('a');
      expect(await model.explain('a')).toBeNull();
    }
    await pass(0.1);
  });
});
