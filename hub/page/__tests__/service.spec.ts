// SPDX-License-Identifier: BSD-3-Clause
import { Service } from '../service';
import { Store } from '../store';

const SECOND = 1000;

/** One stream of the service, which the test sends. */
interface IStream {
  send: (text: string) => void;
  end: () => void;
  signal: AbortSignal;
}

let streams: IStream[];
let refuse: () => Promise<Response> | null;
let store: Store;

function answer(signal: AbortSignal): Response {
  let settle: (result: { done: boolean; value?: Uint8Array }) => void;
  let fail: (error: Error) => void;
  const read = (): Promise<unknown> =>
    new Promise((resolve, reject) => {
      settle = resolve;
      fail = reject;
    });
  signal.addEventListener('abort', () => fail(new Error('aborted')));
  streams.push({
    send: text =>
      settle({ done: false, value: new TextEncoder().encode(text) }),
    end: () => settle({ done: true }),
    signal
  });
  return {
    ok: true,
    status: 200,
    body: { getReader: () => ({ read }) }
  } as unknown as Response;
}

const pass = (seconds: number): Promise<void> =>
  jest.advanceTimersByTimeAsync(SECOND * seconds);

function hide(hidden: boolean): void {
  Object.defineProperty(document, 'hidden', {
    configurable: true,
    value: hidden
  });
  document.dispatchEvent(new Event('visibilitychange'));
}

let asked: number;
let listen: jest.SpyInstance;

beforeEach(async () => {
  jest.useFakeTimers();
  listen = jest.spyOn(document, 'addEventListener');
  // The longest pause that may be, each time.
  jest.spyOn(Math, 'random').mockReturnValue(1 - Number.EPSILON);
  streams = [];
  refuse = () => null;
  asked = 0;
  globalThis.fetch = (_, init) => {
    asked++;
    return refuse() ?? Promise.resolve(answer(init?.signal as AbortSignal));
  };
  store = new Store();
  new Service(store).listen();
  await pass(0.1);
});

afterEach(() => {
  // A page ends with its service.
  for (const [type, listener] of listen.mock.calls as [string, () => void][]) {
    document.removeEventListener(type, listener);
  }
  hide(false);
  jest.restoreAllMocks();
  jest.useRealTimers();
});

it('takes what the service sends, and says when it is gone', async () => {
  streams[0]?.send('event: names\ndata: []\n\n');
  await pass(0);
  expect(store.state.link).toBe('good');
  streams[0]?.end();
  await pass(0);
  expect(store.state.link).toBe('bad');
  expect(store.state.said.isFailure).toBe(true);
  await pass(1);
  expect(asked).toBe(2);
  // What was said goes after three times 6 s.
  await pass(18);
  expect(store.state.said.text).toBe('');
});

it('asks a service that does not answer less and less often', async () => {
  refuse = () => Promise.reject(new TypeError('Failed to fetch'));
  streams[0]?.end();
  const times: number[] = [];
  for (let second = 0, before = asked; second < 60; second++) {
    await pass(1);
    if (asked > before) {
      times.push(second);
      before = asked;
    }
  }
  const pauses = times.slice(1).map((time, at) => time - (times[at] ?? 0));
  expect(pauses).toEqual([1, 1, 2, 4, 8, 15, 15]);
  refuse = () => null;
  await pass(15);
  streams[1]?.send(': \n\n');
  await pass(0);
  streams[1]?.end();
  await pass(1.1);
  // It was there, so it is asked at once.
  expect(streams).toHaveLength(3);
});

it('gives a silent stream up', async () => {
  await pass(30);
  streams[0]?.send(': \n\n');
  await pass(39);
  expect(streams[0]?.signal.aborted).toBe(false);
  await pass(2);
  expect(streams[0]?.signal.aborted).toBe(true);
  await pass(2);
  expect(streams).toHaveLength(2);
});

it('stops listening in a tab that nobody sees', async () => {
  hide(true);
  await pass(29);
  hide(false);
  streams[0]?.send(': \n\n');
  await pass(35);
  expect(streams).toHaveLength(1);
  expect(streams[0]?.signal.aborted).toBe(false);
  hide(true);
  await pass(31);
  const before = asked;
  await pass(300);
  expect(asked).toBe(before);
  expect(streams.every(({ signal }) => signal.aborted)).toBe(true);
  hide(false);
  await pass(0.1);
  expect(asked).toBe(before + 1);
});

it('listens no more once the viewer may not', async () => {
  // The page was loaded again a moment ago, and that did not help.
  sessionStorage.setItem('gpushare-login', String(Date.now()));
  streams[0]?.send('event: over\ndata: \n\n');
  await pass(60);
  expect(store.state.link).toBe('over');
  hide(true);
  hide(false);
  await pass(60);
  expect(asked).toBe(1);
});
