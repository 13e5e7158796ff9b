// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { Timer } from '../../labextension/src/core/timer';
import type { INode, IViewer } from './messages';

/** How the page hears from the service; `over`: the viewer may no longer. */
export type Link = 'starting' | 'good' | 'bad' | 'over';

export interface IState {
  viewer: IViewer;
  /** By their names, in the page's order. */
  nodes: ReadonlyMap<string, INode>;
  /** The last utilisations of each GPU. */
  samples: ReadonlyMap<string, readonly number[]>;
  link: Link;
  /** Whether every node has reported once. */
  isReady: boolean;
  /** What is said aloud: what was done, or what failed. */
  said: { text: string; isFailure: boolean };
}

/** So many samples of a GPU's utilisation are drawn. */
export const SAMPLES = 60;

/** How long the outcome of an action is shown, in milliseconds; a failure, three times as long. */
const SAID_FOR = 6000;

const SILENT: IState['said'] = { text: '', isFailure: false };

/** What the page knows. */
export class Store {
  get state(): IState {
    return this._state;
  }

  change(changes: Partial<IState>): void {
    this._state = { ...this._state, ...changes };
    this._listeners.forEach(listener => listener());
  }

  /** Take what a node says, and the utilisation of its GPUs. */
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

  /** Take the names of all nodes, in their order. */
  setNames(names: readonly string[]): void {
    const { nodes } = this._state;
    const known = names.flatMap(name => nodes.get(name) ?? []);
    this.change({
      nodes: new Map(known.map(node => [node.name, node])),
      isReady: true
    });
  }

  /** Say what was done, or why it was not: aloud as well. */
  say(text: string, isFailure = false): void {
    this.change({ said: { text, isFailure } });
    this._silence.set(isFailure ? 3 * SAID_FOR : SAID_FOR);
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this._listeners.add(listener);
    return () => {
      this._listeners.delete(listener);
    };
  };

  private _listeners = new Set<() => void>();
  private _silence = new Timer(() => this.change({ said: SILENT }));
  private _state: IState = {
    viewer: { may_act: false, sees_all: false },
    nodes: new Map(),
    samples: new Map(),
    link: 'starting',
    isReady: false,
    said: SILENT
  };
}

/** What the page knows, as React draws it. */
export function useStore(store: Store): IState {
  return React.useSyncExternalStore(store.subscribe, () => store.state);
}
