// SPDX-License-Identifier: BSD-3-Clause

// Loaded when the sidebar of running kernels is first shown, its style too.
import '../../style/running.css';

export { GpuSection } from './section';
