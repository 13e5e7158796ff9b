// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { Timer } from '../../labextension/src/core/timer';
import type { INode, IViewer } from './messages';

/** The state of the connection to the service; `over`: the viewer has lost access. */
export type Link = 'starting' | 'good' | 'bad' | 'over';

export interface IState {
  viewer: IViewer;
  /** By name, in the order on the page. */
  nodes: ReadonlyMap<string, INode>;
  /** The latest utilisation samples of each GPU. */
  samples: ReadonlyMap<string, readonly number[]>;
  link: Link;
  /** Whether every node has reported once. */
  isReady: boolean;
  /** The outcome of the last action, which screen readers announce. */
  outcome: { text: string; isFailure: boolean };
}

/** The number of samples in the picture of a GPU's utilisation. */
export const SAMPLES = 60;

/** How long the outcome of an action is shown, in milliseconds. A failure is shown three times as long. */
const SHOWN_FOR = 6000;

const NO_OUTCOME: IState['outcome'] = { text: '', isFailure: false };

/** The state of the page. */
export class Store {
  get state(): IState {
    return this._state;
  }

  change(changes: Partial<IState>): void {
    this._state = { ...this._state, ...changes };
    this._listeners.forEach(listener => listener());
  }

  /** Store the data of a node, and add the utilisation of its GPUs to the samples. */
  setNode(node: INode): void {
    const { nodes, samples } = this._state;
    const after = new Map(samples);
    if (node.known && !node.away) {
      for (const { uuid, utilization } of node.gpus) {
        const known = [...(after.get(uuid) ?? []), utilization ?? 0];
        after.set(uuid, known.slice(-SAMPLES));
      }
    }
    this.change({
      nodes: new Map([...nodes, [node.name, node]]),
      samples: after
    });
  }

  /** Store the names of all nodes, in their order, and remove other nodes. */
  setNames(names: readonly string[]): void {
    const { nodes } = this._state;
    const known = names.flatMap(name => nodes.get(name) ?? []);
    this.change({
      nodes: new Map(known.map(node => [node.name, node])),
      isReady: true
    });
  }

  /** Show the outcome of an action, and let screen readers announce it. */
  report(text: string, isFailure = false): void {
    this.change({ outcome: { text, isFailure } });
    this._expiry.set(isFailure ? 3 * SHOWN_FOR : SHOWN_FOR);
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this._listeners.add(listener);
    return () => {
      this._listeners.delete(listener);
    };
  };

  private _expiry = new Timer(() => this.change({ outcome: NO_OUTCOME }));
  private _listeners = new Set<() => void>();
  private _state: IState = {
    viewer: { may_act: false, sees_all: false },
    nodes: new Map(),
    samples: new Map(),
    link: 'starting',
    isReady: false,
    outcome: NO_OUTCOME
  };
}

/** The state of the page, for React components. */
export function useStore(store: Store): IState {
  return React.useSyncExternalStore(store.subscribe, () => store.state);
}
