// SPDX-License-Identifier: BSD-3-Clause

// Loaded when the timeline is first opened in the main area. It shares the chunk of the
// panel, whose timeline and style it uses.
import '../../style/panel/index.css';

export { fill } from './view';
