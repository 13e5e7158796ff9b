// SPDX-License-Identifier: BSD-3-Clause
import { Alarm } from '../alarm';

const pass = (milliseconds: number): Promise<void> =>
  jest.advanceTimersByTimeAsync(milliseconds);

let rung: number;
let alarm: Alarm;

beforeEach(() => {
  jest.useFakeTimers();
  rung = 0;
  alarm = new Alarm(() => rung++);
});

afterEach(() => {
  alarm.dispose();
  jest.useRealTimers();
});

it('rings once, when its pause is over', async () => {
  alarm.set(1000);
  await pass(999);
  expect([rung, alarm.isSet]).toEqual([0, true]);
  await pass(1);
  expect([rung, alarm.isSet]).toEqual([1, false]);
  await pass(60_000);
  expect(rung).toBe(1);
});

it('rings at the time that was set last', async () => {
  alarm.set(1000);
  await pass(500);
  alarm.set(1000);
  alarm.set(2000);
  await pass(1999);
  expect(rung).toBe(0);
  await pass(1);
  expect(rung).toBe(1);
});

it('can be set again while it rings', async () => {
  const again = new Alarm(() => {
    rung++;
    again.set(10);
  });
  again.set(0);
  await pass(100);
  expect(rung).toBe(11);
  again.dispose();
});

it.each(['stop', 'dispose'] as const)(
  'does not ring after %s',
  async silence => {
    alarm.set(1000);
    alarm[silence]();
    expect(alarm.isSet).toBe(false);
    await pass(2000);
    expect(rung).toBe(0);
  }
);

it('can be set after it was stopped, but not after it was disposed of', async () => {
  alarm.stop();
  alarm.set(1000);
  await pass(1000);
  expect(rung).toBe(1);
  alarm.dispose();
  alarm.set(1000);
  await pass(1000);
  expect([rung, alarm.isSet]).toEqual([1, false]);
});
