// SPDX-License-Identifier: BSD-3-Clause
import { Service } from '../service';
import { Store } from '../store';

const SECOND = 1000;

/** A stream of the service, whose content the test sends. */
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
  // Makes every pause as long as possible.
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
  // The listeners of a page would outlive its test.
  for (const [type, listener] of listen.mock.calls as [string, () => void][]) {
    document.removeEventListener(type, listener);
  }
  hide(false);
  jest.restoreAllMocks();
  jest.useRealTimers();
});

it('shows the data of the service, and reports a lost connection', async () => {
  streams[0]?.send('event: names\ndata: []\n\n');
  await pass(0);
  expect(store.state.link).toBe('good');
  streams[0]?.end();
  await pass(0);
  expect(store.state.link).toBe('bad');
  expect(store.state.outcome.isFailure).toBe(true);
  await pass(1);
  expect(asked).toBe(2);
  // A failure is shown for three times 6 s.
  await pass(18);
  expect(store.state.outcome.text).toBe('');
});

it('retries with growing pauses while the service does not respond', async () => {
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
  // The last stream brought data, so the next attempt follows at once.
  expect(streams).toHaveLength(3);
});

it('closes a stream without data', async () => {
  await pass(30);
  streams[0]?.send(': \n\n');
  await pass(39);
  expect(streams[0]?.signal.aborted).toBe(false);
  await pass(2);
  expect(streams[0]?.signal.aborted).toBe(true);
  await pass(2);
  expect(streams).toHaveLength(2);
});

it('closes the stream in a hidden tab', async () => {
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

it('opens no more streams after the viewer has lost access', async () => {
  // The page was reloaded a moment ago, which did not restore access.
  sessionStorage.setItem('gpushare-login', String(Date.now()));
  streams[0]?.send('event: over\ndata: \n\n');
  await pass(60);
  expect(store.state.link).toBe('over');
  hide(true);
  hide(false);
  await pass(60);
  expect(asked).toBe(1);
});
