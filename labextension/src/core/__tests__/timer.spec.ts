// SPDX-License-Identifier: BSD-3-Clause
import { Timer } from '../timer';

const pass = (milliseconds: number): Promise<void> =>
  jest.advanceTimersByTimeAsync(milliseconds);

let rung: number;
let timer: Timer;

beforeEach(() => {
  jest.useFakeTimers();
  rung = 0;
  timer = new Timer(() => rung++);
});

afterEach(() => {
  timer.dispose();
  jest.useRealTimers();
});

it('calls back once after its pause', async () => {
  timer.set(1000);
  await pass(999);
  expect([rung, timer.isSet]).toEqual([0, true]);
  await pass(1);
  expect([rung, timer.isSet]).toEqual([1, false]);
  await pass(60_000);
  expect(rung).toBe(1);
});

it('calls back at the time that was set last', async () => {
  timer.set(1000);
  await pass(500);
  timer.set(1000);
  timer.set(2000);
  await pass(1999);
  expect(rung).toBe(0);
  await pass(1);
  expect(rung).toBe(1);
});

it('can be set again in its callback', async () => {
  const again = new Timer(() => {
    rung++;
    again.set(10);
  });
  again.set(0);
  await pass(100);
  expect(rung).toBe(11);
  again.dispose();
});

it.each(['stop', 'dispose'] as const)(
  'does not call back after %s',
  async silence => {
    timer.set(1000);
    timer[silence]();
    expect(timer.isSet).toBe(false);
    await pass(2000);
    expect(rung).toBe(0);
  }
);

it('can be set after it was stopped, but not after it was disposed of', async () => {
  timer.stop();
  timer.set(1000);
  await pass(1000);
  expect(rung).toBe(1);
  timer.dispose();
  timer.set(1000);
  await pass(1000);
  expect([rung, timer.isSet]).toEqual([1, false]);
});
