// SPDX-License-Identifier: BSD-3-Clause
import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';

import type { IPreferences } from '../tokens';

/** The default settings, as in schema/plugin.json. */
export const DEFAULTS: Readonly<IPreferences> = {
  notify: true,
  notificationDelay: 10,
  history: 5,
  side: 'right',
  units: 'binary',
  statusBar: 'state-and-memory',
  prefetch: true
};

/** Read the user's settings; invalid values are replaced by the defaults. */
export function readPreferences(
  settings: Readonly<Record<string, unknown>>
): IPreferences {
  const read = <K extends keyof IPreferences>(
    key: K,
    valid: (value: unknown) => boolean
  ): IPreferences[K] => {
    const value = settings[key];
    return valid(value) ? (value as IPreferences[K]) : DEFAULTS[key];
  };
  const isFlag = (value: unknown): boolean => typeof value === 'boolean';
  const within = (least: number, most: number) => (value: unknown) =>
    typeof value === 'number' && value >= least && value <= most;
  const among =
    (...values: string[]) =>
    (value: unknown) =>
      typeof value === 'string' && values.includes(value);
  return {
    notify: read('notify', isFlag),
    notificationDelay: read('notificationDelay', within(1, 3600)),
    history: read('history', within(1, 30)),
    side: read('side', among('left', 'right')),
    units: read('units', among('binary', 'decimal')),
    statusBar: read('statusBar', among('state', 'state-and-memory', 'none')),
    prefetch: read('prefetch', isFlag)
  };
}

/**
 * Apply the settings now and after each change.
 *
 * @param id - The id of the plugin with the schema.
 * @param apply - Called with the settings.
 * @returns An object that stops this when it is disposed.
 */
export async function followPreferences(
  registry: ISettingRegistry,
  id: string,
  apply: (preferences: IPreferences) => void
): Promise<IDisposable> {
  const settings = await registry.load(id);
  const update = (): void => apply(readPreferences(settings.composite));
  settings.changed.connect(update);
  update();
  return new DisposableDelegate(() => {
    settings.changed.disconnect(update);
  });
}
