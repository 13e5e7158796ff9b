// SPDX-License-Identifier: BSD-3-Clause
import type { IDisposable } from '@lumino/disposable';
import { DisposableSet } from '@lumino/disposable';

/** The objects that a plugin has created while it is active. */
export class Lifetime {
  /** Keep an object until the plugin is deactivated. */
  add<T extends IDisposable>(made: T): T {
    this._made.add(made);
    return made;
  }

  /** Dispose of all objects. The plugin may be activated again. */
  readonly end = (): void => {
    this._made.dispose();
    this._made = new DisposableSet();
  };

  private _made = new DisposableSet();
}
