// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { IGroupShare } from '../core/shares';
import { REST, restsSince } from '../core/shares';
import type { IGpu, IStatus } from '../core/status';
import { isRunning } from '../core/status';
import { partText } from '../words/panel';
import type { IWording } from '../words/short';
import type { Clock } from './clock';
import { useClock } from './clock';
import type { IGpuProps } from './gpu';
import { Caret, Gpu } from './gpu';
import { NO_SHARES } from './sections';

interface IGpusProps {
  status: IStatus;
  shares: ReadonlyMap<string, readonly IGroupShare[]>;
  colours: ReadonlyMap<string, number>;
  wording: IWording;
  clock: Clock;
  /** The length of their utilisation history in seconds. */
  seconds: number;
  /** The element next to the heading. */
  children: React.ReactNode;
}

/** The GPUs: a line for each busy GPU, and one line for all idle ones. */
export function Gpus(props: IGpusProps): JSX.Element | null {
  const { status, shares, colours, wording, clock, seconds } = props;
  const { gpus, groups, host, timeline } = status;
  const { trans } = wording;
  const several = gpus.length > 1;
  // Joined, because the clock compares values by identity.
  const rests = useClock(clock, now =>
    gpus
      .filter(gpu => now - restsSince(gpu, groups) >= REST)
      .map(({ uuid }) => uuid)
      .join(' ')
  ).split(' ');
  if (gpus.length === 0) {
    return null;
  }
  const resting = gpus.filter(({ uuid }) => rests.includes(uuid));
  const idle = several && resting.length > 1 ? resting : [];
  const draw = (gpu: IGpu): JSX.Element => {
    const line: IGpuProps = {
      gpu,
      several,
      isInUse: groups.some(
        group =>
          isRunning(group) && group.gpus.some(({ uuid }) => uuid === gpu.uuid)
      ),
      shares: shares.get(gpu.uuid) ?? NO_SHARES,
      host,
      samples: timeline?.samples,
      colours,
      wording,
      clock,
      seconds
    };
    return <Gpu key={gpu.uuid} {...line} />;
  };
  return (
    <section
      className="jp-GpuShare-section jp-GpuShare-gpus"
      aria-labelledby="jp-GpuShare-gpus"
    >
      <div className="jp-GpuShare-heading">
        <h3 id="jp-GpuShare-gpus">
          {trans._n('On the GPU', 'On the GPUs', gpus.length)}
        </h3>
        {props.children}
      </div>
      {gpus.filter(gpu => !idle.includes(gpu)).map(draw)}
      {idle.length > 0 && (
        <IdleGpus gpus={idle} wording={wording} draw={draw} />
      )}
    </section>
  );
}

interface IIdleGpusProps {
  gpus: IGpu[];
  wording: IWording;
  draw: (gpu: IGpu) => JSX.Element;
}

/** All idle GPUs as one line, which unfolds to a line for each. */
function IdleGpus({ gpus, wording, draw }: IIdleGpusProps): JSX.Element {
  const { trans, units } = wording;
  const [open, setOpen] = React.useState(false);
  const sum = (key: 'used' | 'total'): number =>
    gpus.reduce((total, gpu) => total + gpu[key], 0);
  return (
    <div className="jp-GpuShare-idleGpus">
      <button
        type="button"
        className="jp-GpuShare-line"
        aria-expanded={open}
        onClick={() => setOpen(!open)}
      >
        <Caret open={open} />
        <span className="jp-GpuShare-gpuName">
          {trans._n('%1 idle GPU', '%1 idle GPUs', gpus.length)}
        </span>
        <span className="jp-GpuShare-used">
          {partText(sum('used'), sum('total'), units, trans)}
        </span>
      </button>
      {open && gpus.map(draw)}
    </div>
  );
}
