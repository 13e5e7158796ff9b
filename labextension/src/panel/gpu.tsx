// SPDX-License-Identifier: BSD-3-Clause
import {
  caretDownEmptyIcon,
  caretDownIcon,
  caretRightIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import React from 'react';

import type { ITranslation } from '../core/translation';
import type { IGroupShare } from '../core/shares';
import { REST } from '../core/shares';
import { openMenu } from '../actions/menu';
import type {
  IGpu,
  IHibernation,
  IHost,
  ISettings,
  ITimeline
} from '../core/status';
import { CommandIds } from '../tokens';
import { idlenessText, modeText } from '../words/settings';
import type { IWording } from '../words/short';

import type { Clock } from './clock';
import { useClock } from './clock';
import type { ISegment } from './memory';
import { makeGpu } from './memory';
import { utilisationPath } from './timeline/lanes';

const SPARK = { width: 64, height: 14 };

interface IGpuProps {
  gpu: IGpu;
  /** Whether there are others. */
  several: boolean;
  /** The time since which nobody uses it. */
  restsSince: number;
  shares: readonly IGroupShare[];
  host: IHost | null;
  samples: ITimeline['samples'] | undefined;
  colours: ReadonlyMap<string, number>;
  wording: IWording;
  clock: Clock;
  /** Seconds of the history of its utilisation. */
  seconds: number;
  /** What stands beside its name. */
  children?: React.ReactNode;
}

function GpuBlock(props: IGpuProps): JSX.Element {
  const { gpu, several, restsSince, shares, host, samples } = props;
  const { colours, wording, clock, seconds } = props;
  const { trans } = wording;
  const [open, setOpen] = React.useState(false);
  const rests = useClock(clock, now => Number(now - restsSince >= REST));
  const isIdle = several && rests === 1;
  const view = makeGpu(gpu, shares, host, colours, wording);
  const label = trans.__('GPU %1, %2', gpu.index, gpu.name);
  const number = trans.__('GPU %1', gpu.index);
  const fold = trans.__('Show this idle GPU as one line');
  if (isIdle && !open) {
    return (
      <section
        className="jp-GpuShare-gpu jp-GpuShare-idleGpu"
        aria-label={label}
      >
        <button
          type="button"
          aria-expanded="false"
          title={`${gpu.name}\n${gpu.uuid}`}
          onClick={() => setOpen(true)}
        >
          <caretRightIcon.react tag="span" />
          <span>{number}</span>
          <span>{trans.__('idle · %1', view.used)}</span>
        </button>
      </section>
    );
  }
  return (
    <section className="jp-GpuShare-gpu" aria-label={label}>
      <div className="jp-GpuShare-gpuHead">
        {isIdle && (
          <button
            type="button"
            className="jp-GpuShare-icon"
            aria-expanded="true"
            title={fold}
            aria-label={fold}
            onClick={() => setOpen(false)}
          >
            <caretDownIcon.react tag="span" />
          </button>
        )}
        <h3 title={`${gpu.name}\n${gpu.uuid}`}>{gpu.name}</h3>
        {several && <small>{number}</small>}
        {gpu.draining && (
          <small
            className="jp-GpuShare-draining"
            title={trans.__(
              'An administrator is draining this GPU. No notebook can use it until that ends.'
            )}
          >
            {trans.__('draining')}
          </small>
        )}
        {props.children}
      </div>
      <Bar
        className="jp-GpuShare-bar"
        label={trans.__('GPU memory')}
        segments={view.segments}
        trans={trans}
      />
      {view.host.length > 0 && (
        <Bar
          className="jp-GpuShare-bar jp-GpuShare-host"
          label={trans.__('Host memory')}
          segments={view.host}
          trans={trans}
        />
      )}
      <div className="jp-GpuShare-figures">
        <span>{view.used}</span>
        <Utilisation
          gpu={gpu}
          samples={samples}
          seconds={seconds}
          clock={clock}
          wording={wording}
        />
        {view.hostText && <span>{view.hostText}</span>}
      </div>
      {view.legend.length > 0 && (
        <div className="jp-GpuShare-legend">
          {view.legend.map(({ part, text }) => (
            <span key={part}>
              <span className="jp-GpuShare-key" data-part={part} />
              {text}
            </span>
          ))}
        </div>
      )}
    </section>
  );
}

/** A GPU: whose memory is on it, and how busy it is; drawn again only when that changed. */
export const Gpu = React.memo(GpuBlock);

interface IBarProps {
  className: string;
  label: string;
  segments: ISegment[];
  trans: ITranslation;
}

function Bar(props: IBarProps): JSX.Element {
  const { className, label, segments, trans } = props;
  const titles = segments.map(segment => segment.title).join(', ');
  return (
    <div
      className={className}
      role="img"
      aria-label={trans.__('%1: %2', label, titles || trans.__('empty'))}
    >
      {segments.map(({ key, part, colour, percent, title }) => (
        <span
          key={key}
          data-part={part}
          data-colour={colour ?? undefined}
          style={{ width: `${percent}%` }}
          title={title}
        />
      ))}
    </div>
  );
}

interface IUtilisationProps {
  gpu: IGpu;
  samples: ITimeline['samples'] | undefined;
  seconds: number;
  clock: Clock;
  wording: IWording;
}

function Utilisation(props: IUtilisationProps): JSX.Element | null {
  const { gpu, samples, seconds, clock, wording } = props;
  const { trans } = wording;
  const { width, height } = SPARK;
  // The picture moves when it would differ by a pixel.
  const step = seconds / width;
  const now = useClock(clock, now => Math.ceil(now / step) * step);
  const path = React.useMemo(
    () =>
      samples
        ? utilisationPath(samples, gpu.uuid, now, seconds, width, height - 1)
        : '',
    [samples, gpu.uuid, now, seconds, width, height]
  );
  if (gpu.utilization === null) {
    return null;
  }
  return (
    <span
      className="jp-GpuShare-utilisation"
      title={trans._n(
        'Time in which a CUDA kernel was running, now and in the last minute',
        'Time in which a CUDA kernel was running, now and in the last %1 minutes',
        seconds / 60
      )}
    >
      {path && (
        <svg
          aria-hidden="true"
          viewBox={`0 0 ${width} ${height}`}
          width={width}
          height={height}
        >
          <path
            className="jp-GpuShare-area"
            d={`${path}V${height}H${path.slice(1, path.indexOf(' '))}z`}
          />
          <path
            className="jp-GpuShare-line"
            d={path}
            transform="translate(0 0.5)"
          />
        </svg>
      )}
      {trans.__('%1 % busy', Math.round(gpu.utilization))}
    </span>
  );
}

interface IModeProps {
  settings: ISettings;
  hibernation: IHibernation | null;
  /** Whether the viewer may change it. */
  may: boolean;
  commands: CommandRegistry;
  wording: IWording;
}

function ModeChoice(props: IModeProps): JSX.Element {
  const { settings, hibernation, may, commands, wording } = props;
  const { trans } = wording;
  const text = modeText(settings, trans);
  const title = [
    settings.anti_thrash === 'auto'
      ? trans.__(
          'Notebooks run side by side if their memory fits, and take turns if it does not.'
        )
      : settings.anti_thrash === 'on'
        ? trans.__('One notebook at a time uses a GPU.')
        : trans.__(
            'Notebooks with managed memory run side by side, even if their memory does not fit.'
          ),
    trans.__('Policy: %1', settings.policy),
    idlenessText(settings, hibernation, trans)
  ]
    .filter(line => line)
    .join('\n');
  if (
    !may ||
    !commands.hasCommand(CommandIds.setAntiThrash) ||
    !commands.hasCommand(CommandIds.setQuantum)
  ) {
    return (
      <span className="jp-GpuShare-mode" title={title}>
        {text}
      </span>
    );
  }
  return (
    <button
      type="button"
      className="jp-GpuShare-mode"
      aria-haspopup="menu"
      aria-expanded="false"
      aria-label={trans.__('How notebooks share the GPU: %1', text)}
      title={title}
      onClick={event => openMenu(commands, event.currentTarget, 'mode')}
    >
      <span>{text}</span>
      <caretDownEmptyIcon.react tag="span" />
    </button>
  );
}

/** How notebooks share, and for those allowed the menu to change it. */
export const Mode = React.memo(ModeChoice);
