// SPDX-License-Identifier: BSD-3-Clause
import type { IGroup } from '../core/status';
import { isAway } from '../core/status';
import type { Hint } from '../tokens';

/** Milliseconds without a sign of the user after which the next sign is a return. */
export const PAUSE = 30_000;

/**
 * Where the memory of a notebook is, as far as the page knows: `here` if nothing has to be
 * restored or the scheduler sees to it already, `away` if it is not all on the GPU.
 */
export type Place = 'here' | 'away' | 'unknown';

/** A stronger sign is reported after a weaker one, but not the other way round. */
const STRENGTHS: Readonly<Record<Hint, number>> = { focus: 1, typing: 2 };

/** What is known of the user's visits to one notebook. */
interface IVisit {
  /** The time of the last sign. */
  seen: number;
  /** The strength of the hint that was given since the user returned; 0 if none was. */
  given: number;
  /** The time of that hint. */
  at: number;
  /** How often the notebook had used the GPU by then. */
  uses: number;
  /** Whether the memory has been on the GPU since then. */
  wasHere: boolean;
}

/**
 * Decides which signs of the user are hints for the scheduler.
 *
 * A user returns to a notebook with the first sign after a pause, or after memory that the
 * notebook has used since the last hint was evicted. If memory was restored in vain and
 * evicted, this counts only after a pause. A return gives each kind of hint at
 * most once, and only while the memory may have to be restored. Signs that follow give none.
 */
export class Returns {
  /**
   * Note a sign of the user.
   *
   * @param uses - How often the notebook has used the GPU, as far as the page knows.
   * @param now - Milliseconds.
   * @returns Whether it is a hint.
   */
  sign(
    kernel: string,
    kind: Hint,
    place: Place,
    uses: number,
    now: number
  ): boolean {
    const visit = this._visitTo(kernel);
    const wasEvicted =
      uses !== visit.uses || (visit.wasHere && now - visit.at >= PAUSE);
    if (now - visit.seen >= PAUSE || wasEvicted) {
      visit.given = 0;
    }
    visit.seen = now;
    if (place === 'here' || visit.given >= STRENGTHS[kind]) {
      return false;
    }
    Object.assign(visit, {
      given: STRENGTHS[kind],
      at: now,
      uses,
      wasHere: false
    });
    return true;
  }

  /** Note where the memory of a notebook is. */
  see(kernel: string, place: Place): void {
    if (place === 'here') {
      this._visitTo(kernel).wasHere = true;
    }
  }

  private _visitTo(kernel: string): IVisit {
    let visit = this._visits.get(kernel);
    if (!visit) {
      visit = {
        seen: -Infinity,
        given: 0,
        at: -Infinity,
        uses: 0,
        wasHere: false
      };
      this._visits.set(kernel, visit);
    }
    return visit;
  }

  private _visits = new Map<string, IVisit>();
}

/** Where the memory of a group is; there is nothing to restore for a kernel without a group. */
export function placeOf(group: IGroup | null): Place {
  return group && isAway(group) ? 'away' : 'here';
}
