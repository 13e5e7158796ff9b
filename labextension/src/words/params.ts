// SPDX-License-Identifier: BSD-3-Clause
import type { Params } from '../core/status';

export function number(params: Params, key: string): number {
  const value = Number(params[key]);
  return Number.isFinite(value) ? value : 0;
}

/** A member that is a text, or ''. */
export function text(params: Params, key: string): string {
  const value = params[key];
  return typeof value === 'string' || typeof value === 'number'
    ? String(value)
    : '';
}
