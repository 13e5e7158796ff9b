// SPDX-License-Identifier: BSD-3-Clause
import type { Params } from '../core/status';

export function number(params: Params, key: string): number {
  const value = Number(params[key]);
  return Number.isFinite(value) ? value : 0;
}

/** Return a member if it is a text; otherwise ''. */
export function text(params: Params, key: string): string {
  const value = params[key];
  return typeof value === 'string' || typeof value === 'number'
    ? String(value)
    : '';
}
