// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { formatPercent } from '../../../labextension/src/core/format';
import { isolate } from '../../../labextension/src/words/mentions';
import type { INode, IUser } from '../messages';
import { reportsOf } from '../messages';
import type { IState } from '../store';
import { Noted, Table } from '../table';
import { sharedText, size, someTime, TEXT } from '../text';

const NUMBERS = new Set([
  'notebooks',
  'share',
  'ran',
  'memory',
  'swapped',
  'waited'
]);

/** The users of all nodes. */
export function Users({ state }: { state: IState }): JSX.Element {
  const users = usersOf(state.nodes.values());
  return (
    <section className="panel">
      {users.length > 0 ? (
        <Table
          caption={TEXT.users}
          className=""
          columns={TEXT.userColumns}
          numbers={NUMBERS}
        >
          {users.map(user => (
            <User key={user.name} user={user} />
          ))}
        </Table>
      ) : (
        <p className="empty">{TEXT.noUsers}</p>
      )}
    </section>
  );
}

/** The users of all nodes. A user's figures are added up over the nodes, except the current share: that is the largest. */
function usersOf(nodes: Iterable<INode>): IUser[] {
  const found = new Map<string, IUser>();
  for (const user of reportsOf(nodes).flatMap(node => node.users)) {
    const known = found.get(user.name);
    found.set(user.name, known ? together(known, user) : user);
  }
  return [...found.values()].sort(
    (a, b) => Number(b.mine) - Number(a.mine) || a.name.localeCompare(b.name)
  );
}

function together(one: IUser, other: IUser): IUser {
  const most = (other.share ?? -1) > (one.share ?? -1) ? other : one;
  return {
    ...one,
    notebooks: one.notebooks + other.notebooks,
    waiting: one.waiting + other.waiting,
    waits: one.waits + other.waits,
    waited: one.waited + other.waited,
    ran: one.ran + other.ran,
    memory: {
      resident: one.memory.resident + other.memory.resident,
      unevictable: one.memory.unevictable + other.memory.unevictable,
      clean: one.memory.clean + other.memory.clean,
      swapped: one.memory.swapped + other.memory.swapped,
      shared: one.memory.shared + other.memory.shared,
      disk: one.memory.disk + other.memory.disk
    },
    share: most.share,
    limit: most.limit,
    quota: one.quota || other.quota
  };
}

function User({ user }: { user: IUser }): JSX.Element {
  const { userColumns: columns } = TEXT;
  const { resident, unevictable, swapped, disk } = user.memory;
  const name = isolate(user.name);
  return (
    <tr role="row" data-mine={user.mine ? '' : undefined}>
      <td role="cell" className="name">
        {user.mine ? TEXT.you(name) : name}
      </td>
      <Noted
        className="number"
        label={columns.notebooks}
        text={String(user.notebooks)}
        remark={user.waiting ? TEXT.waiting(user.waiting) : ''}
      />
      <td role="cell" className="number" data-label={columns.share}>
        <span>{user.share === null ? '' : formatPercent(user.share)}</span>
        <span className="share" aria-hidden="true" hidden={user.share === null}>
          <span
            style={{ width: `${Math.min(100, 100 * (user.share ?? 0))}%` }}
          />
          <i
            hidden={!user.limit}
            style={{ left: `${100 * (user.limit ?? 0)}%` }}
          />
        </span>
      </td>
      <Noted className="number" label={columns.ran} text={someTime(user.ran)} />
      <Noted
        className="number"
        label={columns.memory}
        text={resident + unevictable ? size(resident + unevictable) : ''}
      />
      <Noted
        className="number"
        label={columns.swapped}
        text={swapped ? size(swapped) : ''}
        remark={disk ? TEXT.disk(disk) : ''}
        title={sharedText(user.memory)}
      />
      <Noted
        className="number"
        label={columns.waited}
        text={someTime(user.waited)}
        remark={user.waits > 1 ? TEXT.times(user.waits) : ''}
      />
      <Noted className="why" text={user.quota} />
    </tr>
  );
}
