// SPDX-License-Identifier: BSD-3-Clause
import { Poll } from '@lumino/polling';
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
    // The component that draws the time stops it while the panel is hidden.
    standby: 'never'
  });
  private _running = false;
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
