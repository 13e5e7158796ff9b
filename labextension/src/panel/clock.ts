// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { IGpuShareModel } from '../tokens';

const SECOND = 1000;

/**
 * What the texts that count time look at.
 *
 * It moves once a second while it runs, and with each new status, so that what is drawn
 * together shows the same moment.
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

  /** Whether it goes by itself. */
  get running(): boolean {
    return this._timer !== 0;
  }
  set running(value: boolean) {
    if (value !== this.running) {
      window.clearInterval(this._timer);
      this._timer = value ? window.setInterval(() => this.update(), SECOND) : 0;
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
  private _timer = 0;
}

/** What depends on the time; a component draws again only when it differs. */
export function useClock<T extends string | number>(
  clock: Clock,
  select: (now: number) => T
): T {
  let known: { now: number; value: T } | null = null;
  // React asks several times about one moment.
  return React.useSyncExternalStore(clock.subscribe, () => {
    const { now } = clock;
    if (known?.now !== now) {
      known = { now, value: select(now) };
    }
    return known.value;
  });
}
