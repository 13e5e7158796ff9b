// SPDX-License-Identifier: BSD-3-Clause
import { Poll } from '@lumino/polling';
import React from 'react';

import type { IGpuShareModel } from '../tokens';

const SECOND = 1000;

/**
 * The clock for all texts that show a time.
 *
 * It advances once a second while it is running, and with each new status, so that all texts show
 * the same moment.
 */
export class Clock {
  constructor(model: IGpuShareModel) {
    this._model = model;
    this._now = model.now;
  }

  /** The scheduler's clock, in seconds. */
  get now(): number {
    return this._now;
  }

  /** Whether it advances once a second. */
  get running(): boolean {
    return this._running;
  }
  set running(value: boolean) {
    if (value !== this._running) {
      this._running = value;
      void (value ? this._poll.start() : this._poll.stop());
    }
  }

  update(): void {
    this._now = this._model.now;
    this._listeners.forEach(listener => listener());
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this._listeners.add(listener);
    return () => {
      this._listeners.delete(listener);
    };
  };

  private _listeners = new Set<() => void>();
  private _model: IGpuShareModel;
  private _now: number;
  private _poll = new Poll({
    auto: false,
    factory: () => {
      this.update();
      return Promise.resolve();
    },
    frequency: { interval: SECOND, backoff: false },
    // The component that shows the time stops it while the panel is hidden.
    standby: 'never'
  });
  private _running = false;
}

/** Return a value that depends on the time. The component renders again only when the value changes. */
export function useClock<T extends string | number>(
  clock: Clock,
  select: (now: number) => T
): T {
  let known: { now: number; value: T } | null = null;
  // React asks for the same moment several times.
  return React.useSyncExternalStore(clock.subscribe, () => {
    const { now } = clock;
    if (known?.now !== now) {
      known = { now, value: select(now) };
    }
    return known.value;
  });
}
